"""A message table as an operator sees it: what waits, who owns it, what is discarded. Nothing is written."""

from __future__ import annotations

from typing import Any, LiteralString, NamedTuple

import psycopg

from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import OWNER, PROGRESS, Owner, source_name
from outbox._rules.source_progress import Progress
from outbox.operator.state.channel_state import DiscardedRows
from outbox.operator.state.waiting_rows import TopicRows, WaitingRow
from outbox.protocol.identifiers import started_us_of, xid_of

_BY_TOPIC: LiteralString = (
    "WITH first AS (SELECT {known}, created_at FROM {message} ORDER BY id LIMIT %(most)s)"
    " SELECT topic, count(*), max(partition), min({started}) FROM first GROUP BY topic ORDER BY 4, 1"
)
_ROWS: LiteralString = "SELECT xid::text::bigint, id, {started}, {known}, key FROM {message} ORDER BY id LIMIT %(most)s"
_REASONS: LiteralString = (
    "SELECT reason, count(*), CAST(min(extract(epoch FROM discarded_at)) * 1000 AS bigint) FROM {discarded}"
    " GROUP BY reason ORDER BY reason"
)
_EVIDENCE: LiteralString = "SELECT FROM {delivered} LIMIT 1"
_NOW: LiteralString = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"

_FIND: LiteralString = (
    "SELECT id, service, coalesce(topic, ''), {started}, timestamp, '', '', 0::bigint FROM {message}"
    " WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s ORDER BY id LIMIT %(most)s"
)
_FIND_DISCARDED: LiteralString = (
    "SELECT id, service, topic, {started}, timestamp, reason, detail,"
    " CAST(extract(epoch FROM discarded_at) * 1000 AS bigint) FROM {discarded}"
    " WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s ORDER BY id LIMIT %(most)s"
)
_FIND_DELIVERED: LiteralString = (
    "SELECT id, service, topic, {started}, earliest, batch,"
    " CAST(extract(epoch FROM delivered_at) * 1000 AS bigint) FROM {delivered}, unnest(ids) AS run,"
    " generate_series(lower(run), upper(run) - 1) AS id"
    " WHERE xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s ORDER BY id LIMIT %(most)s"
)
_STATUS: LiteralString = "SELECT pg_xact_status(CAST(%s AS xid8))"
_BACKEND: LiteralString = (
    "SELECT pid FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted"
    " AND transactionid::text::bigint = %(xid)s %% 4294967296"
)


class FoundRow(NamedTuple):
    """A row of one local transaction.

    Args:
        timestamp: The message's own timestamp, ms since 1970; None: it has none.
        reason: Why it was discarded; empty: it waits.
    """

    id: int
    service: str
    topic: str
    started_us: int
    timestamp: int | None
    reason: str
    detail: str
    discarded_ms: int

    @property
    def stamped_ms(self) -> int:
        """Return the timestamp of its record, ms since 1970."""
        return self.started_us // 1_000 if self.timestamp is None else self.timestamp


class DeliveredRow(NamedTuple):
    """The evidence of one delivered row.

    Args:
        earliest: The lowest timestamp that a message beside it has of its own, ms since 1970; None: none has one.
        delivered_ms: When the relay wrote the evidence, ms since 1970.
    """

    id: int
    service: str
    topic: str
    started_us: int
    earliest: int | None
    batch: int
    delivered_ms: int

    @property
    def stamped_ms(self) -> int:
        """Return the lowest timestamp that its record can have, ms since 1970."""
        started = self.started_us // 1_000
        return started if self.earliest is None else min(self.earliest, started)


class TableView:
    """Reads one message table, and what belongs to it; of a foreign table, what belongs to it.

    All methods raise `psycopg.Error` if the database does not answer, or the tables or rights are missing.
    """

    def __init__(self, table: MessageTable | ForeignSource, connection: psycopg.Connection[Any]) -> None:
        self._table = table
        self._connection = connection
        self._source = source_name(table.names.schema, table.names.source)

    def _all(self, statement: LiteralString, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._table.compose(statement), parameters).fetchall()

    def now_ms(self) -> int:
        """Return the database's time, ms since 1970."""
        ((now,),) = self._all(_NOW)
        return int(now)

    def progress(self) -> tuple[str, Progress] | None:
        """Return the name under which the table is delivered, and the progress; None: it never was."""
        for name, *progress in self._all(PROGRESS):
            return name, Progress.read(*progress)
        return None

    def has_evidence(self) -> bool:
        """Return whether there is evidence of deliveries."""
        return bool(self._all(_EVIDENCE))

    def owner(self) -> Owner | None:
        """Return the session that holds the owner's lock; None: none does."""
        row = self._connection.execute(OWNER, {"source": self._source}).fetchone()
        return None if row is None else Owner(*row)

    def by_topic(self, most: int) -> list[TopicRows]:
        """Return how many rows wait for each topic, of the first rows of the table."""
        return [TopicRows(*row) for row in self._all(_BY_TOPIC, {"most": most})]

    def rows(self, most: int) -> list[WaitingRow]:
        """Return the first rows of the table, without their values."""
        return [WaitingRow(*row) for row in self._all(_ROWS, {"most": most})]

    def discarded(self) -> list[DiscardedRows]:
        """Return how many rows are discarded, by reason."""
        return [DiscardedRows(*row) for row in self._all(_REASONS)]

    def find(self, transaction_id: str, most: int) -> tuple[list[FoundRow], list[FoundRow]]:
        """Return the rows of a local transaction that wait, and those that are discarded."""
        parameters = {"xid": str(xid_of(transaction_id)), "started": started_us_of(transaction_id), "most": most}
        waiting = [FoundRow(*row) for row in self._all(_FIND, parameters)]
        return waiting, [FoundRow(*row) for row in self._all(_FIND_DISCARDED, parameters)]

    def find_delivered(self, transaction_id: str, most: int) -> list[DeliveredRow]:
        """Return the evidence of the rows of a local transaction (R61)."""
        parameters = {"xid": str(xid_of(transaction_id)), "started": started_us_of(transaction_id), "most": most}
        return [DeliveredRow(*row) for row in self._all(_FIND_DELIVERED, parameters)]

    def was_rolled_back(self, xid: int) -> bool:
        """Return whether the server has it of the last transaction with an xid that it was rolled back."""
        try:
            return self._connection.execute(_STATUS, (str(xid),)).fetchone() == ("aborted",)
        except psycopg.errors.InvalidParameterValue:  # it was not assigned
            return False

    def backend_of(self, xid: int) -> int | None:
        """Return the process id of the backend in which a transaction is open; None: in none."""
        row = self._connection.execute(_BACKEND, {"xid": xid}).fetchone()
        return None if row is None else int(row[0])
