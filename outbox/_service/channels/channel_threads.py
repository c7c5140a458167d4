"""Several channels in one process: a thread for each, which starts its channel again after an error (R66)."""

import gc
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from outbox._security.redaction import redact, visible
from outbox._service.channels.channel_context import enter_channel
from outbox._service.channels.channel_metrics import UNREACHABLE, MetricTable
from outbox._service.exit_codes import traceback_of
from outbox._service.health import ChannelsHealth, Health
from outbox.errors import KafkaUnreachable

log = structlog.get_logger()


class Service(Protocol):
    """What has a main loop."""

    def run(self) -> None:
        """Serve until asked to stop."""


@dataclass(frozen=True, slots=True)
class ServiceControl:
    """What a service is given beside its settings."""

    stop: threading.Event
    health: Health


FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A channel that ran for this time did not stop because of its start."""
STOP_SECONDS = 25.0
"""Time for all channels to stop; each limits its own steps to less."""
TICK_SECONDS = 0.2


class ChannelThread(threading.Thread):
    """Serves one channel until the process stops.

    An error that it `survives` ends nothing but this channel, and not for good: the cause may be mended meanwhile.
    """

    def __init__(
        self,
        channel: str,
        make: Callable[[], Service],
        stop: threading.Event,
        health: Health,
        metrics: MetricTable,
        survives: type[Exception] = Exception,
    ) -> None:
        super().__init__(name=f"channel-{channel}", daemon=True)
        self._survives = survives
        self._channel = channel
        self._make = make
        self._stop_wanted = stop
        self._health = health
        self._metrics = metrics
        self._stops_in_a_row = 0

    def run(self) -> None:
        """Serve, and again after each error."""
        enter_channel(self._channel)
        self._metrics.restarted(0)
        while not self._stop_wanted.is_set():
            if pause := self._serve():
                gc.collect(1)  # the clients of the service refer to each other, and would keep their threads
                self._stop_wanted.wait(pause)

    def _serve(self) -> float:
        """Serve until the process stops, or until an error; return how long to pause, seconds."""
        began = time.monotonic()
        try:
            self._make().run()
        except self._survives as error:  # it is logged, and must not reach other channels
            return self._stopped(error, time.monotonic() - began)
        return 0.0

    def _stopped(self, error: Exception, seconds: float) -> float:
        self._stops_in_a_row = 1 if seconds >= STEADY_SECONDS else self._stops_in_a_row + 1
        is_silent = isinstance(error, KafkaUnreachable)  # which took 10 s to find out
        doublings = 0 if is_silent else self._stops_in_a_row - 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0**doublings, LONGEST_PAUSE_SECONDS)
        reason = visible(redact(str(error)))
        self._metrics.restarted()
        self._metrics.contract.labels(UNREACHABLE).set_function(lambda: is_silent)  # until a service shows its own
        self._health.stopped(reason)
        log.error("Channel stopped, it is started again", reason=reason, pause=pause, exc_info=traceback_of(error))
        return pause


class ChannelThreads:
    """The channels of a process."""

    def __init__(self, threads: Mapping[str, ChannelThread], health: ChannelsHealth, stop: threading.Event) -> None:
        self._threads = threads
        self._health = health
        self._stop = stop

    def run(self) -> None:
        """Serve all channels until asked to stop."""
        for thread in self._threads.values():
            thread.start()
        while not self._stop.wait(TICK_SECONDS):
            self._health.turned()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._threads.values():
            thread.join(max(deadline - time.monotonic(), 0))
        if late := sorted(name for name, thread in self._threads.items() if thread.is_alive()):
            log.warning("Channels did not stop in time; other processes repeat their open batches", channels=late)
