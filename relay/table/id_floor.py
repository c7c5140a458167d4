"""The id from which a table source reads (R62). Pure.

Rows are deleted after their delivery. While a long transaction elsewhere holds vacuum back, their index entries stay,
and each read from the lowest id passes all of them. A read may begin higher, at an id below which no row can appear.

Ids ascend in the order in which they are given out, and a transaction that was given one holds a lock on the table
until it ends. So once a row is visible, a lower id can only appear by a transaction that holds such a lock now. When
all of those have ended, the next read sees whatever they have committed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

LOOK_SECONDS = 1.0
"""Pause between two looks at the locks of the table."""

PREPARED = "prepared"
"""Represents all prepared transactions: PREPARE TRANSACTION gives a transaction another name."""

WHOLE_SECONDS = 60.0
"""Pause between two reads from the lowest id: the ids of a table must not be restarted, but an operator can do so."""


class _Mark(NamedTuple):
    """Transactions after whose end no row can appear up to an id."""

    id: int
    writers: frozenset[str]


class IdFloor:
    """What is known of the ids of a message table.

    Args:
        now: Monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self.id = 0
        """Rows below it are known, or do not exist and never will."""
        self.newest = 0
        """No higher one was seen."""
        self._complete = 0
        self._mark: _Mark | None = None
        self._look_at = now
        self._whole_at = now + WHOLE_SECONDS

    def is_due(self, now: float) -> bool:
        """Return whether to look at the locks of the table, before the next read."""
        return now >= self._look_at and self.newest > self._complete

    def look(self, writers: Collection[str], now: float) -> None:
        """Learn which transactions may have inserted rows that are not visible yet.

        Args:
            now: Monotonic seconds.
        """
        self._look_at = now + LOOK_SECONDS
        if PREPARED in writers:
            return
        if self._mark is not None and self._mark.writers.isdisjoint(writers):
            self._complete, self._mark = self._mark.id, None
        if self._mark is None and self.newest > self._complete:
            self._mark = _Mark(self.newest, frozenset(writers))

    def saw(self, ids: Sequence[int], known: Collection[int], now: float) -> None:
        """Learn what a read from the floor has returned.

        Args:
            ids: Ids of its rows, ascending.
            known: Ids that it left out: of rows that wait, and of the newest batch.
            now: Monotonic seconds.
        """
        self.newest = max(self.newest, *ids[-1:], 0)
        if now >= self._whole_at:
            self._whole_at, self.id = now + WHOLE_SECONDS, 0
        else:
            self.id = min(self._complete + 1, *ids[:1], min(known, default=self._complete + 1))
