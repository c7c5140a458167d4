"""Look up a database's incarnation and the rows of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, Self

import psycopg

from outbox._postgres.callback_table import CallbackTable
from outbox._rules.callback_row import Row, read_row
from outbox.protocol.check import CheckRequest

_INCARNATION: LiteralString = "SELECT value FROM {meta} WHERE key = 'incarnation'"
_READ: LiteralString = (
    "SELECT transaction_id::text, state, half_topic_id::text, half_partition, first_offset, last_offset, positions"
    " FROM {transaction} WHERE transaction_id = ANY (%s::uuid[])"
)


@dataclass(frozen=True, slots=True)
class RowLookup:
    """Result of one look at a database.

    Args:
        incarnation: Its incarnation; None: it has none.
        rows: Rows by transaction id.
    """

    incarnation: str | None
    rows: dict[str, Row]

    @classmethod
    def at(cls, connection: psycopg.Connection[Any], table: CallbackTable, ids: Sequence[str]) -> Self:
        """Look up the incarnation and the rows of these transactions."""
        found = connection.execute(table.compose(_INCARNATION)).fetchone()
        return cls(None if found is None else found[0], read_rows(connection, table, ids))


def read_rows(connection: psycopg.Connection[Any], table: CallbackTable, ids: Sequence[str]) -> dict[str, Row]:
    """Return the rows of these transactions, read in a separate statement."""
    return _parsed(connection.execute(table.compose(_READ), (list(ids),))) if ids else {}


def foreign(batch: Iterable[CheckRequest], incarnation: str | None) -> set[str]:
    """Transactions whose half names another incarnation, or none: a wrong or restored database never decides (R10)."""
    return {request.transaction_id for request in batch if incarnation is None or request.incarnation != incarnation}


def _parsed(rows: psycopg.Cursor[Any]) -> dict[str, Row]:
    return {
        id_: read_row(state, topic_id, partition, first, last, positions)
        for id_, state, topic_id, partition, first, last, positions in rows.fetchall()
    }
