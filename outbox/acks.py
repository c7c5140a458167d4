"""The acknowledgements of the halves of one transaction: a half counts once it has an offset (R3)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from confluent_kafka import KafkaError, Message

from outbox.errors import PublishFailed
from outbox.waiting import Notify, Waiting

Report = Callable[[KafkaError | None, Message], None]
"""Serves a delivery report of librdkafka's."""


class Acks:
    """The acknowledgements of the halves of one transaction, as they come in.

    Args:
        seconds: How long to wait for them, from the moment at which somebody waits.
    """

    def __init__(self, seconds: float) -> None:
        self.error: str | None = None
        self._seconds = seconds
        self._offsets: list[int] = []
        self._left = 0
        self._when_all: Notify | None = None
        self._lock = threading.Lock()

    def expect(self) -> Report:
        """Expect one more acknowledgement; returns what serves its delivery report."""
        with self._lock:
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
            if error is not None:
                self.error = f"{error.name()}: {error.str()}"
            elif offset is None or offset < 0:
                self.error = "a half was acknowledged without an offset"
            else:
                self._offsets[index] = offset
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

    def arrive(self, waiting: Waiting, seconds: float) -> bool:
        """Wait for so many of the seconds; whether nothing is missing any more."""
        arrived = waiting.until(self.when_all, min(seconds, self._seconds))
        if not arrived:
            self._seconds -= min(seconds, self._seconds)
        return arrived

    def offsets(self, waiting: Waiting) -> list[int]:
        """Wait for all acknowledgements; the offsets of the halves, in the order in which they were expected.

        Raises:
            PublishFailed: Not all came in time, with an offset.
        """
        if self._left and not waiting.until(self.when_all, self._seconds):
            raise PublishFailed(
                f"Kafka did not acknowledge {len(self._offsets)} half message(s) in time: "
                "is it up? The local transaction is rolled back; try again"
            )
        if self.error is not None:
            raise PublishFailed(f"Kafka refused a half message ({self.error}); the local transaction is rolled back")
        return self._offsets

    def acknowledged(self) -> list[int]:
        """The offsets that have come, -1 for each of the others."""
        return self._offsets
