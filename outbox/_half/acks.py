"""Collect the acknowledgements of the halves of one transaction; one without an offset does not count (R3)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from confluent_kafka import KafkaError, Message

from outbox._kafka.connection_causes import NO_ANSWER
from outbox._kafka.produce import why_refused
from outbox._publish.waiting import Budget, Notify
from outbox.errors import PublishFailed

Report = Callable[[KafkaError | None, Message], None]


class Witness(Protocol):
    """Records whether Kafka answers."""

    def answered(self) -> None:
        """Record that a half was acknowledged now."""

    def unanswered(self, since: float, cause: str) -> None:
        """Record that a half sent at `since`, seconds of the monotonic clock, was not acknowledged."""


class Acks:
    """The acknowledgements of the halves of one transaction."""

    def __init__(self, witness: Witness) -> None:
        self.error: str | None = None
        self._witness = witness
        self._too_late = False
        self._sent_at = 0.0  # s, monotonic
        self._answered_at = -math.inf  # likewise
        self._offsets: list[int] = []
        self._left = 0
        self._when_all: Notify | None = None
        self._lock = threading.Lock()

    def expect(self) -> Report:
        """Expect one more acknowledgement; return the callback for its delivery report."""
        with self._lock:
            self._sent_at = time.monotonic()
            self._left += 1
            self._offsets.append(-1)
            return partial(self._report, len(self._offsets) - 1)

    def cancel_last(self) -> None:
        """Stop expecting the last half, which could not be produced: no report will come."""
        with self._lock:
            self._left -= 1
            self._offsets.pop()

    def _report(self, index: int, error: KafkaError | None, message: Message) -> None:
        """Handle a delivery report. An acknowledgement without an offset is an error (R3)."""
        offset = message.offset()
        with self._lock:
            if index >= len(self._offsets):
                return  # cancelled: a signal handler raised after produce() had queued the half (R47)
            if error is not None:
                self.error = why_refused(error, message.topic() or "")
                self._too_late = self._too_late or error.code() in NO_ANSWER
            elif offset is None or offset < 0:
                self.error = "a half was acknowledged without an offset"
            else:
                self._offsets[index] = offset
                self._answered_at = time.monotonic()
                self._witness.answered()
            self._left -= 1
            notify = None
            if self._left == 0:
                notify, self._when_all = self._when_all, None
        if notify is not None:
            notify()

    def when_all(self, notify: Notify) -> None:
        """Call a function when all acknowledgements are there: now, or from the thread that polls the producer."""
        with self._lock:
            missing = self._left
            self._when_all = notify if missing else None
        if not missing:
            notify()

    def arrive(self, budget: Budget, seconds: float) -> bool:
        """Wait for at most `seconds` of the budget; return whether all acknowledgements are there."""
        return budget.until(self.when_all, seconds)

    def offsets(self, budget: Budget) -> list[int]:
        """Wait for all acknowledgements; return the offsets of the halves in the order of `expect()`."""
        if self._left and not budget.until(self.when_all):
            if self._answered_at < self._sent_at:  # else Kafka is at work on many halves
                self._witness.unanswered(self._sent_at, "a half message was not acknowledged")
            raise PublishFailed(
                f"Kafka did not acknowledge {len(self._offsets)} half message(s) in time. "
                "Roll the local transaction back. Check that Kafka is up, and try again."
            )
        if self.error is not None:
            if self._too_late:
                self._witness.unanswered(self._sent_at, self.error)
            raise PublishFailed(
                f"Kafka refused a half message ({self.error}). Roll the local transaction back. "
                "Correct the cause, or try again."
            )
        return self._offsets

    def acknowledged(self) -> list[int]:
        """Return the offsets so far, -1 for each half that is not acknowledged."""
        return self._offsets
