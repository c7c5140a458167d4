"""How a service runs: settings, logs, health, signals, then its main loop; expected errors end in one clear line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from prometheus_client import CollectorRegistry

from outbox.service.exits import guarded
from outbox.service.health import Health, serve_health
from outbox.service.logs import configure_logs
from outbox.service.settings import ServiceSettings
from outbox.service.signals import stop_on_signals

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
) -> None:
    """Run a service until SIGTERM or SIGINT.

    Args:
        settings_type: Type of its settings.
        given: Settings from the command line; None is not given.
        registry: Its metrics.
        make: Makes it, from settings, the event that asks it to stop, and its health.
    """

    def serve() -> None:
        settings = settings_type(**{name: value for name, value in given.items() if value is not None})
        configure_logs(settings.log_level, settings.log_format)
        health = Health()
        if settings.http_port:
            serve_health(settings.http_host, settings.http_port, health, registry)
        make(settings, stop_on_signals(), health).run()

    guarded(serve)
