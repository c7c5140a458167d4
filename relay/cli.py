"""`outbox relay`: run the relay."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from outbox._service.exit_codes import guarded
from outbox._service.health import Health
from outbox._service.logs import configure_logs
from outbox._service.memory import collect_rarely, share_one_arena
from outbox._service.run import check_service, run_service
from outbox._service.settings_help import Check, with_settings
from outbox._service.signals import stop_on_signals
from relay import metrics
from relay.figures import RelayProgress
from relay.self_check import examine
from relay.service import RelayService
from relay.settings import RelaySettings
from relay.workers import WORKERS_LOG_FORMAT, end_with_parent, run_workers

app = typer.Typer(
    cls=with_settings(RelaySettings),
    help="Run the relay: committed halves to their real topics, exactly once and in order.",
)


@app.callback(invoke_without_command=True)
def run(
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    channel: Annotated[str | None, typer.Option(help="Channel to serve.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of /livez, /readyz and /metrics; 0: none.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes on this host; http_port counts up.")] = None,
    check: Check = False,  # noqa: FBT002 - a flag
) -> None:
    """Run the relay until SIGTERM. Everything can also be set by environment (OUTBOX_…) or by OUTBOX_CONFIG."""
    options = {
        "bootstrap_servers": bootstrap_servers,
        "channel": channel,
        "http_port": http_port,
        "workers": workers,
    }
    given = {name: str(value) for name, value in options.items() if value is not None}
    if check:
        check_service(RelaySettings, given, examine)
    else:
        guarded(lambda: _run(given))


def _run(given: dict[str, str]) -> None:
    share_one_arena()
    collect_rarely()
    settings = RelaySettings.model_validate(given)
    if settings.workers == 1:
        run_service(RelaySettings, given, metrics.REGISTRY, _service, RelayProgress(metrics.REGISTRY))
    else:
        configure_logs(settings.log_level, WORKERS_LOG_FORMAT)
        raise SystemExit(run_workers(settings, given, stop_on_signals()))


def _service(settings: RelaySettings, stop: threading.Event, health: Health) -> RelayService:
    end_with_parent(stop)
    return RelayService(settings, stop, health)
