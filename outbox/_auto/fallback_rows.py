"""The SQL of auto mode: look for earlier rows of a lane, and insert the rows of a transaction that falls back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import LiteralString, NamedTuple

import psycopg

from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_errors import explained
from outbox._publish.local_connection import LocalConnection
from outbox._table.insert_connection import insert_connection
from outbox._table.message_insert import MAX_ROWS, LaneInsert
from outbox.errors import UsageError
from outbox.message import Message
from outbox.protocol.identifiers import table_transaction_id, xid_of
from outbox.settings import Settings

# A snapshot that lasts longer than this statement may be older than an earlier transaction's rows.
_LOOK: LiteralString = (
    "SELECT current_setting('transaction_isolation') <> 'read committed',"
    " EXISTS (SELECT FROM {message} WHERE lane = %s)"
)
_STATUS: LiteralString = "SELECT pg_xact_status(CAST(CAST(%s AS text) AS xid8))"


class Look(NamedTuple):
    """What a transaction finds about earlier rows of its lane.

    Args:
        in_doubt: Whether its snapshot may be older than such rows.
        rows_wait: Whether it finds one.
    """

    in_doubt: bool
    rows_wait: bool


class Inserted(NamedTuple):
    """The rows of one transaction.

    Args:
        transaction_id: The id that its messages carry.
        ids: Ids of the rows, in the order of the messages.
        mark: The mark of `outbox.transaction()`; None or empty if there is none.
    """

    transaction_id: str
    ids: Sequence[int]
    mark: str | None


class FallbackRows:
    """The statements of one outbox.

    Args:
        settings: Settings of the outbox.
    """

    def __init__(self, settings: Settings) -> None:
        self._table = MessageTable(settings.tables)
        self._look = self._table.compose(_LOOK)
        self._status = self._table.compose(_STATUS)
        self._insert = LaneInsert(settings.tables, settings.group)

    def look(self, connection: LocalConnection, lane: int) -> Look:
        """Look for earlier rows of a lane.

        Args:
            connection: In the transaction, which holds the lock of its business row.
            lane: Number of the lane.

        Raises:
            CallbackTableError: The message table is missing, or the role may not read its column `lane`.
            psycopg.Error: Postgres refuses the statement.
        """
        names = self._table.names
        with explained(names.schema, names.message):
            in_doubt, rows_wait = connection.execute(self._look, (lane,)).row or (True, True)
        return Look(bool(in_doubt), bool(rows_wait))

    def insert(self, connection: LocalConnection, messages: Sequence[Message], lane: int | None) -> Inserted:
        """Insert the messages of a transaction.

        Args:
            connection: In the transaction.
            messages: At least one.
            lane: Number of the lane; None without an ordering key.

        Raises:
            CallbackTableError: The message table is missing, or the role may not insert.
            psycopg.Error: Postgres refuses the statement.
        """
        names, inserts = self._table.names, insert_connection(connection.driver)
        ids: list[int] = []
        with explained(names.schema, names.message):
            for batch in _batches(messages):
                rows = inserts.run(self._insert.of(batch, lane))
                ids += sorted(int(row[0]) for row in rows)  # they were given in the order of the messages
        _, xid, started_us, mark = rows[0]
        return Inserted(table_transaction_id(int(xid), int(started_us)), ids, mark)

    def committed(self, connection: LocalConnection, transaction_id: str) -> bool | None:
        """Return whether the transaction of these rows committed, on an idle connection; None if unknown."""
        try:
            found = connection.execute(self._status, (str(xid_of(transaction_id)),)).row
        except psycopg.Error:
            return None
        finally:
            connection.roll_back()
        return {"committed": True, "aborted": False}.get(str(found[0])) if found is not None else None


def require_mark(found: str | None, transaction_id: str) -> None:
    """Refuse rows that are in another transaction than the one that `outbox.transaction()` began.

    Raises:
        UsageError: The mark is another one.
    """
    if found != transaction_id:
        raise UsageError(
            "The transaction was ended inside the block. "
            "Leave COMMIT and ROLLBACK to outbox.transaction(), which sends them at the end of the block."
        )


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    for start in range(0, len(messages), MAX_ROWS):
        yield messages[start : start + MAX_ROWS]
