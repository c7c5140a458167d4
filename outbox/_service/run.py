"""How a service runs: settings, logs, health, signals, then its main loop; expected errors end in one clear line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry, disable_created_metrics

from outbox._operations.finding import Finding
from outbox._service.exit_codes import guarded
from outbox._service.findings import show_findings
from outbox._service.health import Health, serve_health
from outbox._service.logs import configure_logs
from outbox._service.progress import Figures, show_progress
from outbox._service.settings import ServiceSettings
from outbox._service.signals import stop_on_signals

S = TypeVar("S", bound=ServiceSettings)


class Service(Protocol):
    """What has a main loop."""

    def run(self) -> None:
        """Serve until asked to stop."""


def run_service(
    settings_type: type[S],
    given: Mapping[str, Any],
    registry: CollectorRegistry,
    make: Callable[[S, threading.Event, Health], Service],
    progress: Callable[[], Figures] | None = None,
) -> None:
    """Run a service until SIGTERM or SIGINT.

    Args:
        settings_type: Type of its settings.
        given: Settings from the command line; None is not given.
        registry: Its metrics.
        make: Makes it, from settings, the event that asks it to stop, and its health.
        progress: Gives figures for the progress line.
    """

    def serve() -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the client does not type it
        settings = load_settings(settings_type, given)
        terminal = configure_logs(settings.log_level, settings.log_format)
        health = Health()
        if settings.http_port:
            serve_health(settings.http_host, settings.http_port, health, registry)
        service = make(settings, stop_on_signals(), health)
        with show_progress(progress, terminal) if progress else nullcontext():
            service.run()

    guarded(serve)


def check_service(settings_type: type[S], given: Mapping[str, Any], examine: Callable[[S], Iterable[Finding]]) -> None:
    """Look at everything that a service needs, print what was found, and end.

    Args:
        settings_type: Type of its settings.
        given: Settings from the command line; None is not given.
        examine: Looks.

    Raises:
        SystemExit: Something is wrong.
    """

    def check() -> None:
        settings = load_settings(settings_type, given)
        configure_logs("error", settings.log_format)
        show_findings(examine(settings))

    guarded(check)


def load_settings(settings_type: type[S], given: Mapping[str, Any]) -> S:
    """Return the settings of a service.

    Args:
        settings_type: Their type.
        given: Settings from the command line; None is not given.

    Raises:
        ValidationError: One is wrong or missing.
        ConfigurationError: The TOML file is missing or malformed.
    """
    return settings_type(**{name: value for name, value in given.items() if value is not None})
