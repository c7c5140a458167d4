"""Arrivals: records that the consumer's thread hands over to a partition worker's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from confluent_kafka import Message


class Arrivals:
    """Records of one half partition and its op partition, in the order of their offsets.

    The consumer's thread adds records, the worker's thread takes them.
    """

    def __init__(self) -> None:
        self._halves: deque[Message] = deque()
        self._ops: deque[Message | int] = deque()  # a number: the end of the partition, seen at that broker time
        self._wake = threading.Condition()
        self._op_end_wanted = False
        self.is_stopping = False

    # --- the consumer's thread

    def feed(self, halves: Sequence[Message], ops: Sequence[Message]) -> None:
        """Add records."""
        with self._wake:
            self._halves.extend(halves)
            self._ops.extend(ops)
            self._wake.notify()

    def wants_op_end(self) -> bool:
        """Return whether the worker waits for the end of the op partition, and has read all ops that are here."""
        return self._op_end_wanted and not self._ops

    def add_op_end(self, broker_time: int) -> None:
        """Add the fact that everything in the op partition at this broker time (ms) is here."""
        with self._wake:
            self._ops.append(broker_time)
            self._op_end_wanted = False
            self._wake.notify()

    def stop(self) -> None:
        """Ask the worker to stop."""
        with self._wake:
            self.is_stopping = True
            self._wake.notify()

    def sizes(self) -> tuple[int, int]:
        """Return how many records of the half partition, and of the op partition, wait here."""
        return len(self._halves), len(self._ops)

    # --- the worker's thread

    def wait(self, seconds: float) -> None:
        """Wait for records, or a stop, for at most so many seconds."""
        with self._wake:
            if not self._halves and not self._ops and not self.is_stopping:
                self._wake.wait(seconds)

    def next_half(self) -> int | None:
        """Return the offset of the first half; None: there is none."""
        return self._halves[0].offset() if self._halves else None

    def take_halves(self, most: int, limit: int) -> list[Message]:
        """Take halves.

        Args:
            most: How many at most.
            limit: Offset from which on none is taken.
        """
        taken: list[Message] = []
        while self._halves and len(taken) < most and (self._halves[0].offset() or 0) < limit:
            taken.append(self._halves.popleft())
        return taken

    def take_ops(self, most: int) -> list[Message | int]:
        """Take op records, and between them the times at which the end of the partition was seen."""
        return [self._ops.popleft() for _ in range(min(len(self._ops), most))]

    def want_op_end(self, *, wanted: bool) -> None:
        """Note whether a check or a parking waits for the end of the op partition."""
        self._op_end_wanted = wanted
