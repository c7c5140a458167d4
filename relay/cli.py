"""`outbox relay`: run the relay."""

from __future__ import annotations

from typing import Any

import typer

from outbox._cli.setting_options import Check, layers, setting_options
from outbox._service.channels.channel_settings import load_all
from outbox._service.channels.service_control import ServiceControl
from outbox._service.logs import configure_logs
from outbox._service.memory import collect_rarely, share_one_arena
from outbox._service.run import ServiceMetrics, run_service
from outbox._service.signals import reload_on_signal, stop_on_signals
from outbox.operator.checks.findings import check_service
from relay import metrics
from relay.figures import RelayProgress
from relay.self_check import examine
from relay.service import RelayService
from relay.settings import RelaySettings, require_allow_list
from relay.workers import WORKERS_LOG_FORMAT, end_with_parent, run_workers

app = typer.Typer(
    epilog=layers(RelaySettings),
    help="Run the relay: deliver committed halves and table rows to their real topics, exactly once, in order.",
)


@app.callback(invoke_without_command=True)
@setting_options(RelaySettings)
def run(given: dict[str, Any], check: Check = False) -> None:  # noqa: FBT002 - a flag
    """Run the relay until SIGTERM."""
    given = {name: str(value) for name, value in given.items()}
    if check:
        check_service(RelaySettings, given, examine)
    else:
        _run(given)


def _make(settings: RelaySettings, control: ServiceControl[RelaySettings]) -> RelayService:
    require_allow_list(settings.profile, settings.allowed_topics)
    return RelayService(settings, control)


def _run(given: dict[str, str]) -> None:
    share_one_arena()
    collect_rarely()
    channels = load_all(RelaySettings, given)
    for name, settings in channels.items():
        require_allow_list(settings.profile, settings.allowed_topics, name)
    settings = next(iter(channels.values()))
    if settings.workers == 1:
        shown = ServiceMetrics(metrics.REGISTRY, metrics.READY, metrics.RESTARTS)
        run_service(RelaySettings, given, shown, _make, RelayProgress(metrics.REGISTRY), end_with_parent)
    else:
        configure_logs(settings.log_level, WORKERS_LOG_FORMAT)
        raise SystemExit(run_workers(settings, given, stop_on_signals(), reload_on_signal()))
