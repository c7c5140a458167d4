"""Discarded rows of a message table: what they are; back into the message table, or deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg

from outbox._postgres.message_table import MessageTable
from outbox.errors import ConfigurationError
from outbox.operator.state.discarded import DiscardedTransaction, RowMessage
from outbox.protocol.identifiers import started_us_of, table_transaction_id, xid_of

_LIST: LiteralString = (
    "SELECT xid::text::bigint, {started}, service, (array_agg(reason ORDER BY id))[1],"
    " (array_agg(detail ORDER BY id))[1], count(*), CAST(max(extract(epoch FROM discarded_at)) * 1000 AS bigint)"
    " FROM {discarded} GROUP BY 1, 2, 3 ORDER BY min(id)"
)
_SHOW: LiteralString = (
    "SELECT id, topic, partition, key IS NOT NULL,"
    " coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) FROM {discarded}"
    " WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s AND service = %(service)s ORDER BY id"
)
_BACK: LiteralString = (
    "WITH back AS (DELETE FROM {discarded} WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s"
    " AND service = %(service)s RETURNING *)"
)
_DECIDED: LiteralString = (  # of no message: that the local transaction committed (R74)
    "INSERT INTO {delivered} (xid, created_at, first_id, batch, ids, partition, service, topic)"
    " SELECT xid, created_at, min(id), CAST(0 AS bigint), int8multirange(), partition, service, topic FROM back"
    " GROUP BY xid, created_at, partition, service, topic ON CONFLICT DO NOTHING"
)
_MADE: LiteralString = (
    "INSERT INTO {message} (service, topic, partition, timestamp, key, value, header_names, header_values)"
    " SELECT service, topic, partition, timestamp, key, value, header_names, header_values FROM back"
    " ORDER BY id RETURNING xid::text::bigint AS xid, {started} AS started, id"  # ids ascend in this order
)
_MOVED: LiteralString = (
    "SELECT xid, started, new.id, old.id FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM made) AS new"
    " FULL JOIN (SELECT id, row_number() OVER (ORDER BY id) AS n FROM back) AS old USING (n) ORDER BY n"
)
_DELIVER: LiteralString = f"{_BACK}, decided AS ({_DECIDED}), made AS ({_MADE}) {_MOVED}"
_DROP: LiteralString = f"{_BACK} {_DECIDED}"
_LEFT: LiteralString = (
    "SELECT EXISTS (SELECT FROM {message} WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s)"
    " OR EXISTS (SELECT FROM {discarded} WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s)"
)


class Moved(NamedTuple):
    """Rows that are back in the message table."""

    transaction_id: str
    ids: Sequence[int]
    former: Sequence[int] = ()


class DiscardedTable:
    """The discarded rows of one message table.

    All methods raise `psycopg.Error` if the database does not answer, or the tables or rights are missing.
    """

    def __init__(self, table: MessageTable, connection: psycopg.Connection[Any], source: str = "") -> None:
        self._source = source
        self._table = table
        self._connection = connection

    def read(self) -> Iterator[DiscardedTransaction]:
        """Yield the transactions that are there, the first rows first, one at a time."""
        statement = self._table.compose(_LIST)
        for xid, us, service, reason, detail, count, discarded_ms in self._connection.cursor().stream(statement):
            id_ = table_transaction_id(xid, us)
            yield DiscardedTransaction(
                id_, service, reason, detail, count, us // 1_000, source=self._source, discarded_ms=discarded_ms
            )

    def messages(self, transaction: DiscardedTransaction) -> list[RowMessage]:
        found = self._connection.execute(self._table.compose(_SHOW), _which(transaction)).fetchall()
        return [
            RowMessage(id_, topic if partition < 0 else f"{topic}:{partition}", has_key, size)
            for id_, topic, partition, has_key, size in found
        ]

    def deliver(self, transaction: DiscardedTransaction) -> Moved | None:
        """Move the rows of a transaction back into the message table, behind all that wait; None: they are gone.

        Raises:
            ConfigurationError: They do not all move. Nothing was written.
        """
        with self._connection.transaction():
            found = self._connection.execute(self._table.compose(_DELIVER), _which(transaction)).fetchall()
            self._check(transaction, is_whole=all(None not in row for row in found))
        if not found:
            return None
        xid, us, _, _ = found[0]
        return Moved(table_transaction_id(xid, us), [row[2] for row in found], [row[3] for row in found])

    def drop(self, transaction: DiscardedTransaction) -> None:
        """Delete the rows of a transaction.

        Raises:
            ConfigurationError: They do not all go. Nothing was written.
        """
        with self._connection.transaction():
            self._connection.execute(self._table.compose(_DROP), _which(transaction))
            self._check(transaction, is_whole=True)

    def _check(self, transaction: DiscardedTransaction, *, is_whole: bool) -> None:
        """Refuse what leaves rows behind, or loses them (R71)."""
        if not is_whole or self.messages(transaction):
            names = self._table.names
            raise ConfigurationError(
                f"Transaction {transaction.transaction}: a trigger, a rule or row security of {names.message} or "
                f"{names.discarded} keeps rows from being deleted or inserted. Nothing was written. Drop it, or run "
                "this with another role."
            )

    def left(self, moved: Moved) -> bool:
        """Return whether rows that were moved back wait, or are discarded again."""
        parameters = _local(moved.transaction_id)
        return self._connection.execute(self._table.compose(_LEFT), parameters).fetchone() == (True,)


def _which(transaction: DiscardedTransaction) -> dict[str, Any]:
    return {**_local(transaction.transaction), "service": transaction.service}


def _local(id_: str) -> dict[str, Any]:
    return {"xid": str(xid_of(id_)), "started": started_us_of(id_)}
