"""A look at something from time to time, in a thread of its own, so that no main loop waits for the cluster."""

import math
import threading
import time
from collections.abc import Callable

import structlog

from outbox._service.channels.channel_context import current_channel, enter_channel
from outbox._service.exit_codes import UnsafeError, reason_of
from outbox.errors import KafkaUnreachable, OutboxError

log = structlog.get_logger()

PAUSE_SECONDS = 2.0
"""Least time between two looks on request."""

REFUSED_SECONDS = 60.0
"""Looks that have failed for this time fail for a cause that stays, such as a missing right.

A failed look is repeated after `PAUSE_SECONDS`, so this is about 30 looks, whatever their interval is. A broker that is
restarted refuses for some seconds, and the next one of a rolling restart follows only after looks that succeeded.
"""


class Periodic:
    """Calls a function again and again.

    A cluster that does not answer, or refuses, ends nothing: the next look follows soon. After an unforeseen error
    the next one follows after the pause (R81). Only what makes going on unsafe ends the thread, and is raised
    by `check()`.
    """

    def __init__(self, name: str, look: Callable[[], None], seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self.unreachable = ""
        """Why the last look failed, if Kafka did not answer; else empty."""
        self._failing: tuple[float, str] | None = None  # since when, monotonic s, and why the last look failed
        self._channel = current_channel()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first look comes after the first pause."""
        self._thread.start()

    def soon(self) -> None:
        """Look soon: something odd was seen."""
        self._wanted.set()

    def check(self) -> None:
        """Whether all is well here."""
        if self._failure is not None:
            raise self._failure

    def refused(self) -> str:
        """Return why looks have failed for `REFUSED_SECONDS` or longer, and for how long; else empty."""
        since, reason = self._failing or (math.inf, "")
        seconds = time.monotonic() - since
        return f"for {seconds:.0f} s: {reason}" if seconds >= REFUSED_SECONDS else ""

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
            self.unreachable, self._failing = "", None
        except UnsafeError:
            raise
        except OutboxError as error:
            self.unreachable = str(error) if isinstance(error, KafkaUnreachable) else ""
            since, _ = self._failing or (time.monotonic(), "")
            self._failing = since, str(error)
            log.warning("Cluster not described, repeated later", what=self._thread.name, reason=str(error))
            self._wanted.set()
        except Exception as error:
            since, _ = self._failing or (time.monotonic(), "")
            self._failing = since, reason_of(error)
            log.exception("Unforeseen error of a look, repeated later", what=self._thread.name)
