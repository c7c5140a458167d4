"""From where a table source reads its message table: forward, and what was in progress before (R62). Pure.

Rows get their ids in ascending order, and become visible in another one. A source reads the rows behind the last one
that it has read. A lower row that was not visible then is of a transaction that the snapshot of that read does not
show: one that was in progress, prepared ones included, or one that began later. Such rows are read besides.

A window may be cut: by its limits, or before a transaction that goes on behind it. The next read begins behind what was
taken of it. Where that is lower than the last place, rows come again that are in delivery, or wait: they are known, and
left out.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from relay.table.rows import Row, id_of

_NEVER = str(2**63 - 1)
"""No transaction has this xid yet."""


class Place(NamedTuple):
    """How far a message table is read.

    Args:
        last: Each row up to this id that was visible is read.
        open: Xids of the transactions that were in progress then.
        xmax: No transaction with this xid or a higher one was visible.
    """

    last: int = 0
    open: Sequence[str] = ()
    xmax: str = _NEVER


def behind(last: int, snapshot: str) -> Place:
    """Return the place behind a read.

    Args:
        last: All rows that it saw up to this id are taken.
        snapshot: Its snapshot, as Postgres writes it.
    """
    _, xmax, open_ = snapshot.split(":")
    return Place(last, open_.split(",") if open_ else (), xmax)


class ReadCursor:
    """What is read of one message table by its owner."""

    def __init__(self) -> None:
        self.place = Place()  # where the next read begins
        self.highest = 0  # no higher id was read
        self.first = 0  # no lower row was there when it was read last
        self._read = Place()  # the place before the last read, with the snapshot of that read
        self._ends_at = 0

    def saw(self, rows: Sequence[Row], snapshot: str, known: Collection[int], *, is_cut: bool) -> Sequence[Row]:
        """Take the rows of a read from the place, in the order of their ids; return those that are not known.

        Args:
            known: Ids of rows that are in delivery, or wait.
            is_cut: Whether there are more rows.
        """
        last = rows[-1][1] if rows else 0
        self.first = min(known, default=self.place.last + 1)
        self._read = behind(self.place.last, snapshot)
        self._ends_at = last if is_cut else max(self.place.last, last)
        if rows and rows[0][1] <= self.highest:
            left_out = frozenset(known)
            rows = [row for row in rows if row[1] not in left_out]
        self.highest = max(self.highest, last)
        return rows

    def take(self, rows: Sequence[Row], taken: int) -> None:
        """Go on behind the first rows of those that were read; if none of them is taken, read them once more."""
        if taken or not rows:
            last = self._ends_at if taken == len(rows) else id_of(rows[taken - 1])
            self.place = self._read._replace(last=last)

    def read_again(self, first: int) -> None:
        """Read all rows from an id on once more."""
        self.place = self.place._replace(last=min(self.place.last, first - 1))
