"""How a service runs: settings, logs, health, signals, then its main loops; expected errors end in one clear line."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from prometheus_client import disable_created_metrics

from outbox._service.channels.channel_context import in_channel
from outbox._service.channels.channel_metrics import MetricTable
from outbox._service.channels.channel_threads import ChannelThread, ChannelThreads, Service, ServiceControl
from outbox._service.exit_codes import guarded
from outbox._service.health import ChannelsHealth, Health, serve_health
from outbox._service.logs import configure_logs
from outbox._service.process import stop_on_signals
from outbox._service.settings import ServiceSettings
from outbox._settings.layers import load_all, load_channel
from outbox.errors import KafkaUnreachable

S = TypeVar("S", bound=ServiceSettings)

Make = Callable[[S, ServiceControl], Service]


def run_service(settings_type: type[S], given: Mapping[str, Any], metrics: MetricTable, make: Make[S]) -> None:
    """Run a service until SIGTERM or SIGINT, for one channel or for several (R66)."""
    guarded(partial(_serve, settings_type, given, metrics, make))


def _serve(settings_type: type[S], given: Mapping[str, Any], metrics: MetricTable, make: Make[S]) -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the client does not type it
    channels = load_all(settings_type, given)
    first = next(iter(channels.values()))
    configure_logs(first.log_level, first.log_format)
    stop, healths = stop_on_signals(), {name: Health() for name in channels}
    health = healths.get("") or ChannelsHealth(healths)
    if first.http_port:
        serve_health(first.http_host, first.http_port, health, metrics.registry)

    def made(name: str) -> Service:
        metrics.show_ready(healths[name])
        settings = load_channel(settings_type, given, name) if name else first
        return make(settings, ServiceControl(stop, healths[name]))

    if isinstance(health, ChannelsHealth):
        threads = {name: ChannelThread(name, partial(made, name), stop, healths[name], metrics) for name in channels}
        ChannelThreads(threads, health, stop).run()
    else:
        with in_channel(first.channel):
            ChannelThread(first.channel, partial(made, ""), stop, health, metrics, KafkaUnreachable).run()
