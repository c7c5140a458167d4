"""Arrivals: records that the consumer's thread hands over to a partition worker's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from confluent_kafka import Message


class Arrivals:
    """Records of one half partition, its op and its verdict partition, those of each in the order of their offsets.

    The consumer's thread adds records, the worker's thread takes them.
    """

    def __init__(self) -> None:
        self._halves: deque[Message] = deque()
        self._ops: tuple[deque[Message | int], deque[Message | int]] = (deque(), deque())
        """Of the op, and of the verdict partition. A number: the end of the partition, seen at that broker time."""
        self._ends_wanted = [False, False]
        self._wake = threading.Condition()
        self.is_stopping = False

    # --- the consumer's thread

    def feed(self, halves: Sequence[Message], ops: Sequence[Message], verdicts: Sequence[Message] = ()) -> None:
        """Add records."""
        with self._wake:
            self._halves.extend(halves)
            for waiting, new in zip(self._ops, (ops, verdicts), strict=True):
                waiting.extend(new)
            self._wake.notify()

    def wants_op_end(self, *, verdict: bool) -> bool:
        """Return whether the worker waits for the end of a partition, and has read all of it that is here."""
        return self._ends_wanted[verdict] and not self._ops[verdict]

    def add_op_end(self, broker_time: int, *, verdict: bool) -> None:
        """Add the fact that everything in the op or verdict partition at this broker time (ms) is here."""
        with self._wake:
            self._ops[verdict].append(broker_time)
            self._ends_wanted[verdict] = False
            self._wake.notify()

    def stop(self) -> None:
        """Ask the worker to stop."""
        with self._wake:
            self.is_stopping = True
            self._wake.notify()

    def sizes(self) -> tuple[int, int, int]:
        """Return how many records of the half, the op and the verdict partition wait here."""
        ops, verdicts = self._ops
        return len(self._halves), len(ops), len(verdicts)

    # --- the worker's thread

    def wait(self, seconds: float) -> None:
        """Wait for records, or a stop, for at most so many seconds."""
        with self._wake:
            if not any(self.sizes()) and not self.is_stopping:
                self._wake.wait(seconds)

    def next_half(self) -> int | None:
        """Return the offset of the first half; None: there is none."""
        return self._halves[0].offset() if self._halves else None

    def take_halves(self, most: int, limit: int) -> list[Message]:
        """Take so many halves at most, below an offset."""
        taken: list[Message] = []
        while self._halves and len(taken) < most and (self._halves[0].offset() or 0) < limit:
            taken.append(self._halves.popleft())
        return taken

    def take_ops(self, most: int, *, verdict: bool) -> list[Message | int]:
        """Take records of the op or verdict partition, and between them the times at which its end was seen."""
        waiting = self._ops[verdict]
        return [waiting.popleft() for _ in range(min(len(waiting), most))]

    def want_op_ends(self, *, wanted: bool) -> None:
        """Note whether a check or a parking waits for the ends of the op and the verdict partition."""
        self._ends_wanted = [wanted, wanted]
