"""Which transactions of mode auto wait until earlier halves of their lanes are settled (R57). Pure.

A transaction that fell back to rows may follow one of its lane that is in the half topic. All halves of such an earlier
transaction were acknowledged before its rows became visible, so they are below the end of the half partition that is
read after the rows. The rows wait until the relay's checkpoint has passed that end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from relay.tables.rows import RowTransaction

Which = tuple[str, str]
"""Id and producer group of a transaction."""


class HalfProgress(NamedTuple):
    """The state of a half partition.

    Args:
        topic_id: Id of the half topic; another one after it was recreated.
        end: End offset (high watermark).
        settled: The relay's committed offset: all halves below it are settled. None: there is none for this topic.
    """

    topic_id: str
    end: int
    settled: int | None


Marks = dict[int, HalfProgress | None]
"""By half partition, its state when it was first read after the rows of a transaction; None: it was not read yet."""


class HalfOrder:
    """The transactions that wait for earlier halves.

    Args:
        partitions: Number of half partitions.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._waiting: dict[Which, Marks] = {}
        self._free: set[Which] = set()  # they wait no longer, and are not delivered yet

    def partitions(self, window: Iterable[RowTransaction]) -> set[int]:
        """Return the half partitions whose progress is needed: for a window, and for what waits."""
        found = {number for marks in self._waiting.values() for number in marks}
        return found.union(*(self._half_partitions(transaction) for transaction in window if self.waits(transaction)))

    def _half_partitions(self, transaction: RowTransaction) -> set[int]:
        return {lane % self._partitions for lane in transaction.lanes}

    def learn(self, window: Iterable[RowTransaction], progress: Mapping[int, HalfProgress]) -> bool:
        """Take the progress of half partitions in.

        Args:
            window: Transactions whose rows were read before the progress.
            progress: By half partition. One that is missing is unknown, and transactions wait for it.

        Returns:
            Whether a transaction that is not in the window waits no longer.
        """
        waited = {*self._waiting}
        for transaction in window:
            if self.waits(transaction):
                self._waiting.setdefault(which(transaction), dict.fromkeys(self._half_partitions(transaction)))
        passed = {one for one, marks in self._waiting.items() if _have_passed(marks, progress)}
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


def _have_passed(marks: Marks, progress: Mapping[int, HalfProgress]) -> bool:
    """Return whether the relay's checkpoints have passed the marks. Marks that are missing are set."""
    for number, mark in marks.items():
        now = progress.get(number)
        if now is not None and (mark is None or mark.topic_id != now.topic_id):
            marks[number] = now
    return all(mark is not None and _has_passed(mark, progress.get(number)) for number, mark in marks.items())


def _has_passed(mark: HalfProgress, now: HalfProgress | None) -> bool:
    return now is not None and now.settled is not None and now.settled >= mark.end
