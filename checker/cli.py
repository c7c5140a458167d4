"""`outbox checker`: run the checker."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from checker import metrics
from checker.service import CheckerService
from checker.settings import CheckerSettings
from outbox.service.exits import guarded
from outbox.service.health import Health, serve_health
from outbox.service.logs import configure_logs
from outbox.service.signals import stop_on_signals

app = typer.Typer(help="Run the checker: it asks the callback tables what became of undecided transactions.")


@app.callback(invoke_without_command=True)
def run(
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    channel: Annotated[str | None, typer.Option(help="Channel to serve.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of /livez, /readyz and /metrics; 0: none.")] = None,
) -> None:
    """Run the checker until SIGTERM. Everything can also be set by environment (OUTBOX_…) or by OUTBOX_CONFIG."""
    given: dict[str, Any] = {"bootstrap_servers": bootstrap_servers, "channel": channel, "http_port": http_port}

    def serve() -> None:
        settings = CheckerSettings(**{name: value for name, value in given.items() if value is not None})
        configure_logs(settings.log_level, settings.log_format)
        health = Health()
        if settings.http_port:
            serve_health(settings.http_host, settings.http_port, health, metrics.REGISTRY)
        CheckerService(settings, stop_on_signals(), health).run()

    guarded(serve)
