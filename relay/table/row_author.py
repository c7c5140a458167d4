"""Recognises what a table source wrote to real topics, and whether its rows are still to be delivered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from outbox.protocol.record import Record
from relay.recovery.author import Found, Own, origin_of
from relay.table.owned_table import OwnedTable


class WrittenRow(NamedTuple):
    """A record of a real topic that a table source wrote.

    Args:
        record: The record, as it could be written once more.
        id: Id of its row, of any form.
    """

    record: Record
    offset: int
    transaction_id: str
    id: str


def parse_delivered_row(record: Record, offset: int, source: str) -> WrittenRow | None:
    """Return a record of a real topic at an offset, if the relay wrote it for a table source.

    Args:
        source: What its origin header has before the row's id.
    """
    transaction_id, origin, row = origin_of(record)
    if not (transaction_id and row) or origin != source.encode():
        return None
    return WrittenRow(record, offset, transaction_id, row.decode(errors="replace"))


class RowAuthor:
    """Recognises the records of a table source, by its origin and the transaction ids of its rows.

    Args:
        is_delivered: Whether the newest batch was delivered; its rows may be in the table nevertheless.
    """

    def __init__(self, table: OwnedTable, *, is_delivered: bool) -> None:
        self._table = table
        self._is_delivered = is_delivered

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """See `Author`. A record whose row is gone was delivered.

        A record of another transaction than the row's is of another table of the same name: it is passed over.
        """
        del in_hand
        written = [row for row in (parse_delivered_row(*some, self._table.origin) for some in found) if row is not None]
        there = self._table.transaction_ids({row.id for row in written}) if written else {}
        for row in reversed(written):
            if row.transaction_id in there.get(row.id, {row.transaction_id}):
                return self._own(row, there)
        return None

    def _own(self, row: WrittenRow, there: Collection[str]) -> Own:
        delivered = {str(id_) for id_ in self._table.progress().ids} if self._is_delivered else set[str]()
        return Own(row.record, row.offset, row.id in there and row.id not in delivered)
