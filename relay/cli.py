"""`outbox relay`: run the relay."""

from __future__ import annotations

from typing import Annotated

import typer

from outbox.service.described import Check, with_settings
from outbox.service.run import check_service, run_service
from relay import metrics
from relay.examine import examine
from relay.progress import RelayProgress
from relay.service import RelayService
from relay.settings import RelaySettings

app = typer.Typer(
    cls=with_settings(RelaySettings),
    help="Run the relay: committed halves to their real topics, exactly once and in order.",
)


@app.callback(invoke_without_command=True)
def run(
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    channel: Annotated[str | None, typer.Option(help="Channel to serve.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of /livez, /readyz and /metrics; 0: none.")] = None,
    check: Check = False,  # noqa: FBT002 - a flag
) -> None:
    """Run the relay until SIGTERM. Everything can also be set by environment (OUTBOX_…) or by OUTBOX_CONFIG."""
    given = {"bootstrap_servers": bootstrap_servers, "channel": channel, "http_port": http_port}
    if check:
        check_service(RelaySettings, given, examine)
        return
    run_service(RelaySettings, given, metrics.REGISTRY, RelayService, RelayProgress(metrics.REGISTRY))
