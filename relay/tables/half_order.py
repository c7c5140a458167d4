"""Which transactions of auto mode wait until earlier halves of their lanes are settled (R57). Pure.

A transaction that fell back to rows may follow one of its lane that is in the half topic. All halves of such an earlier
transaction were acknowledged before its rows became visible, so they are below the end of the half partition that is
read after the rows. The rows wait until the relay's checkpoint shows that all halves of the lane below it are settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from relay.tables.rows import RowTransaction

Which = tuple[str, str]
"""Id and producer group of a transaction."""


class HalfProgress(NamedTuple):
    """The state of a half partition.

    Args:
        topic_id: Id of the half topic; another one after it was recreated.
        end: End offset (high watermark).
        head: The relay has read all halves below it. None: there is no checkpoint of this topic.
        unsettled: Lowest offset below the head of a half that is not settled, by the number of its lane; under None
            that of halves whose lane is not known, and which may be of any.
    """

    topic_id: str
    end: int
    head: int | None
    unsettled: Mapping[int | None, int] = {}


class _Mark(NamedTuple):
    """The end of a half partition, as it was first read after the rows of a transaction."""

    topic_id: str
    end: int


@dataclass(slots=True)
class _Waiting:
    """A transaction that waits: its lanes, and its marks by half partition; None: not read yet."""

    lanes: frozenset[int]
    marks: dict[int, _Mark | None]

    def has_passed(self, progress: Mapping[int, HalfProgress]) -> bool:
        """Return whether all earlier halves of the lanes are settled. Marks that are missing are set."""
        passed = [self._has_passed(number, progress.get(number)) for number in self.marks]
        return all(passed)

    def _has_passed(self, number: int, now: HalfProgress | None) -> bool:
        if now is None:
            return False
        mark = self.marks[number]
        if mark is None or mark.topic_id != now.topic_id:
            mark = self.marks[number] = _Mark(now.topic_id, now.end)
        return is_settled(mark.end, self.lanes, now)


class HalfOrder:
    """The transactions that wait for earlier halves.

    Args:
        partitions: Number of half partitions.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._waiting: dict[Which, _Waiting] = {}
        self._free: set[Which] = set()  # they wait no longer, and are not delivered yet

    def partitions(self, window: Iterable[RowTransaction]) -> set[int]:
        """Return the half partitions whose progress is needed: for a window, and for what waits."""
        found = {number for waiting in self._waiting.values() for number in waiting.marks}
        return found.union(*(self._half_partitions(transaction) for transaction in window if self.waits(transaction)))

    def _half_partitions(self, transaction: RowTransaction) -> set[int]:
        return {lane % self._partitions for lane in transaction.lanes}

    def update(self, window: Iterable[RowTransaction], progress: Mapping[int, HalfProgress]) -> bool:
        """Update the waiting transactions by the progress of half partitions.

        Args:
            window: Transactions whose rows were read before the progress.
            progress: By half partition. One that is missing is unknown, and transactions wait for it.

        Returns:
            Whether a transaction that is not in the window waits no longer.
        """
        waited = {*self._waiting}
        for transaction in window:
            if self.waits(transaction) and which(transaction) not in waited:
                marks: dict[int, _Mark | None] = dict.fromkeys(self._half_partitions(transaction))
                self._waiting[which(transaction)] = _Waiting(transaction.lanes, marks)
        passed = {one for one, waiting in self._waiting.items() if waiting.has_passed(progress)}
        for one in passed:
            del self._waiting[one]
        self._free |= passed
        return not passed.isdisjoint(waited)

    def waits(self, transaction: RowTransaction) -> bool:
        """Return whether earlier halves may be undelivered."""
        return bool(transaction.lanes) and which(transaction) not in self._free

    def settled(self, gone: Iterable[RowTransaction]) -> None:
        """Forget transactions that were delivered or discarded."""
        if self._free:
            self._free.difference_update(map(which, gone))


def which(transaction: RowTransaction) -> Which:
    """Return what identifies a transaction; rows of several producer groups in one local transaction are several."""
    return transaction.id, transaction.group


def is_settled(end: int, lanes: Iterable[int], now: HalfProgress) -> bool:
    """Return whether all halves of some lanes below an offset are settled.

    Args:
        end: The offset.
        lanes: Numbers of the lanes.
        now: The state of their half partition.
    """
    if now.head is None or now.head < end:
        return False
    return all(now.unsettled.get(lane, end) >= end for lane in (*lanes, None))
