"""`outbox checker`: run the checker."""

from __future__ import annotations

import threading
from functools import partial
from typing import Annotated

import typer

from checker import metrics
from checker.examine import examine
from checker.service import CheckerService
from checker.settings import CheckerSettings
from outbox.service.described import Check, with_settings
from outbox.service.health import Health
from outbox.service.run import check_service, load_settings, run_service

app = typer.Typer(
    cls=with_settings(CheckerSettings),
    help="Run the checker: it asks the callback tables what became of undecided transactions.",
)


@app.callback(invoke_without_command=True)
def run(
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    channel: Annotated[str | None, typer.Option(help="Channel to serve.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of /livez, /readyz and /metrics; 0: none.")] = None,
    check: Check = False,  # noqa: FBT002 - a flag
) -> None:
    """Run the checker until SIGTERM. Everything can also be set by environment (OUTBOX_…) or by OUTBOX_CONFIG."""
    given = {"bootstrap_servers": bootstrap_servers, "channel": channel, "http_port": http_port}
    if check:
        check_service(CheckerSettings, given, examine)
        return

    def make(settings: CheckerSettings, stop: threading.Event, health: Health) -> CheckerService:
        return CheckerService(settings, stop, health, partial(load_settings, CheckerSettings, given))

    run_service(CheckerSettings, given, metrics.REGISTRY, make)
