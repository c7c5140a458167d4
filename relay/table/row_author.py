"""Recognises what a table source wrote to real topics, and whether its rows are still to be delivered."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from relay.recovery.author import Found, Own, written
from relay.table.owned_table import OwnedTable


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
        own = [(record, record.place.decode(errors="replace")) for record in written(found, self._table.origin)]
        there = self._table.transaction_ids({id_ for _, id_ in own}) if own else {}
        for record, id_ in reversed(own):
            if record.transaction_id in there.get(id_, {record.transaction_id}):
                return Own(record.record, record.offset, id_ in there and id_ not in self._delivered())
        return None

    def _delivered(self) -> set[str]:
        return {str(id_) for id_ in self._table.progress().ids} if self._is_delivered else set()
