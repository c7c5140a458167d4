"""A look at something from time to time, in a thread of its own, so that no main loop waits for the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from outbox._service.channels.channel_context import current_channel, enter_channel
from outbox._service.exit_codes import UnsafeError
from outbox.errors import KafkaUnreachable, OutboxError

log = structlog.get_logger()

PAUSE_SECONDS = 2.0
"""Least time between two looks on request."""


class Periodic:
    """Calls a function again and again.

    A cluster that does not answer, or refuses, is no finding: the next look follows soon. Anything else that goes wrong
    ends the thread and is raised by `check()`.

    Args:
        name: Name of the thread.
        look: What is called.
        seconds: Pause between two calls.
    """

    def __init__(self, name: str, look: Callable[[], None], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self.unreachable = ""
        """Why the last look failed, if Kafka did not answer; else empty."""
        self._channel = current_channel()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first look comes after the first pause."""
        self._thread.start()

    def soon(self) -> None:
        """Look soon: something odd was seen."""
        self._wanted.set()

    def check(self) -> None:
        """Whether all is well here.

        Raises:
            BaseException: What ended the thread.
        """
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End; a look at hand is not waited for."""
        self._stopped.set()
        self._wanted.set()

    def _run(self) -> None:
        enter_channel(self._channel)
        try:
            while not self._stopped.is_set():
                self._wanted.wait(self._seconds)
                self._wanted.clear()
                if not self._stopped.is_set():
                    self._try()
                self._stopped.wait(min(PAUSE_SECONDS, self._seconds))
        except BaseException as error:  # noqa: BLE001 - the main loop reads it
            self._failure = error

    def _try(self) -> None:
        try:
            self._look()
            self.unreachable = ""
        except UnsafeError:
            raise
        except OutboxError as error:
            self.unreachable = str(error) if isinstance(error, KafkaUnreachable) else ""
            log.warning("Cluster not described, repeated later", what=self._thread.name, reason=str(error))
            self._wanted.set()
