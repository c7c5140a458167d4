"""How a service runs: settings, logs, health, signals, then its main loops; expected errors end in one clear line."""

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from prometheus_client import disable_created_metrics

from outbox._service.channels.channel_context import in_channel
from outbox._service.channels.channel_metrics import MetricTable
from outbox._service.channels.channel_threads import ChannelThread, ChannelThreads, Service, ServiceControl
from outbox._service.exit_codes import guarded
from outbox._service.health import ChannelsHealth, Health, Probed, serve_health
from outbox._service.logs import configure_logs
from outbox._service.process import stop_on_signals
from outbox._service.settings import ServiceSettings
from outbox._settings.layers import load_all, load_channel

S = TypeVar("S", bound=ServiceSettings)

Make = Callable[[S, ServiceControl], Service]


def run_service(
    settings_type: type[S],
    given: Mapping[str, Any],
    metrics: MetricTable,
    make: Make[S],
) -> None:
    """Run a service until SIGTERM or SIGINT, for one channel or for several (R66)."""
    guarded(partial(_serve, settings_type, given, metrics, make))


def _serve(
    settings_type: type[S],
    given: Mapping[str, Any],
    metrics: MetricTable,
    make: Make[S],
) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the client does not type it
    channels = load_all(settings_type, given)
    settings = next(iter(channels.values()))
    configure_logs(settings.log_level, settings.log_format)
    stop = stop_on_signals()
    if "" in channels:
        health = Health()
        _serve_health(settings, health, metrics)
        with in_channel(settings.channel):
            metrics.show_ready(health)
            make(settings, ServiceControl(stop, health)).run()
    else:
        several = _Several(settings_type, given, metrics, make, channels)
        _serve_health(settings, several.health, metrics)
        several.service(stop).run()


def _serve_health(settings: ServiceSettings, health: Probed, metrics: MetricTable) -> None:
    if settings.http_port:
        serve_health(settings.http_host, settings.http_port, health, metrics.registry)


class _Several(Generic[S]):
    """The channels of a process."""

    def __init__(
        self,
        settings_type: type[S],
        given: Mapping[str, Any],
        metrics: MetricTable,
        make: Make[S],
        names: Iterable[str],
    ) -> None:
        self._settings_type = settings_type
        self._given = given
        self._metrics = metrics
        self._make = make
        self._healths = {name: Health() for name in names}
        self.health = ChannelsHealth(self._healths)

    def service(self, stop: threading.Event) -> ChannelThreads:
        return ChannelThreads({name: self._thread(name, stop) for name in self._healths}, self.health, stop)

    def _thread(self, name: str, stop: threading.Event) -> ChannelThread:
        health = self._healths[name]

        def make() -> Service:
            self._metrics.show_ready(health)
            settings = load_channel(self._settings_type, self._given, name)
            return self._make(settings, ServiceControl(stop, health))

        return ChannelThread(name, make, stop, health, self._metrics)
