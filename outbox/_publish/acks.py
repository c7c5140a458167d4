"""The acknowledgements of the halves of one transaction: a half counts once it has an offset (R3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from confluent_kafka import KafkaError, Message

from outbox._publish.waiting import Budget, Notify
from outbox.errors import PublishFailed

Report = Callable[[KafkaError | None, Message], None]
"""Serves a delivery report of librdkafka's."""

_TOO_LATE = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001 - librdkafka's own codes carry an underscore
        KafkaError._TIMED_OUT,  # noqa: SLF001 - as above
        KafkaError._TRANSPORT,  # noqa: SLF001 - as above
    }
)


class Witness(Protocol):
    """Learns whether Kafka answers."""

    def answered(self) -> None:
        """Take note that a half was acknowledged now."""

    def unanswered(self, since: float, cause: str) -> None:
        """Take note that a half that was sent then, in seconds of the monotonic clock, was not acknowledged."""


class Acks:
    """The acknowledgements of the halves of one transaction, as they come in.

    Args:
        witness: Learns which came, and which did not come in time.
    """

    def __init__(self, witness: Witness) -> None:
        self.error: str | None = None
        self._witness = witness
        self._too_late = False
        self._sent_at = 0.0  # s, monotonic
        self._offsets: list[int] = []
        self._left = 0
        self._when_all: Notify | None = None
        self._lock = threading.Lock()

    def expect(self) -> Report:
        """Expect one more acknowledgement; returns what serves its delivery report."""
        with self._lock:
            self._sent_at = time.monotonic()
            self._left += 1
            self._offsets.append(-1)
            return partial(self._report, len(self._offsets) - 1)

    def forget(self) -> None:
        """The half that was expected last could not be produced: no report will come."""
        with self._lock:
            self._left -= 1
            self._offsets.pop()

    def _report(self, index: int, error: KafkaError | None, message: Message) -> None:
        """Serve a delivery report. An acknowledgement without an offset does not count (R3)."""
        offset = message.offset()
        with self._lock:
            if index >= len(self._offsets):
                return  # forgotten: an exception of a signal handler came behind the last step of produce() (R47)
            if error is not None:
                self.error = f"{error.name()}: {error.str()}"
                self._too_late = self._too_late or error.code() in _TOO_LATE
            elif offset is None or offset < 0:
                self.error = "a half was acknowledged without an offset"
            else:
                self._offsets[index] = offset
                self._witness.answered()
            self._left -= 1
            notify = None
            if self._left == 0:
                notify, self._when_all = self._when_all, None
        if notify is not None:
            notify()

    def when_all(self, notify: Notify) -> None:
        """Call a function once nothing is missing any more: now, or from the thread that serves the reports."""
        with self._lock:
            missing = self._left
            self._when_all = notify if missing else None
        if not missing:
            notify()

    def arrive(self, budget: Budget, seconds: float) -> bool:
        """Wait for so many seconds of the budget; return whether nothing is missing any more."""
        return budget.until(self.when_all, seconds)

    def offsets(self, budget: Budget) -> list[int]:
        """Wait for all acknowledgements; the offsets of the halves, in the order in which they were expected.

        Raises:
            PublishFailed: Not all came in time, with an offset.
        """
        if self._left and not budget.until(self.when_all):
            self._witness.unanswered(self._sent_at, "a half message was not acknowledged")
            raise PublishFailed(
                f"Kafka did not acknowledge {len(self._offsets)} half message(s) in time: "
                "is it up? The local transaction is rolled back; try again"
            )
        if self.error is not None:
            if self._too_late:
                self._witness.unanswered(self._sent_at, self.error)
            raise PublishFailed(
                f"Kafka refused a half message ({self.error}); the local transaction is rolled back. "
                "Correct what the error names, or try again"
            )
        return self._offsets

    def acknowledged(self) -> list[int]:
        """The offsets that have come, -1 for each of the others."""
        return self._offsets
