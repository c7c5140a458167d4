"""A message table as an operator sees it: what waits, who owns it, what is discarded; and connections to databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, LiteralString, NamedTuple

import psycopg

from outbox._postgres.ddl import identifier, written
from outbox._postgres.dsn import connect_dsn, connection_problem, connection_remedy, query_problem, server_limits
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import HALTED, OWNER, PROGRESS, STATEMENT_SECONDS, Owner
from outbox._postgres.table_errors import explanation_of
from outbox._rules.source_progress import Progress
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError, TableError
from outbox.operator.state.waiting_rows import TopicRows, WaitingRow
from outbox.protocol.identifiers import started_us_of, xid_of

CONNECT_SECONDS = 5
Connection = psycopg.Connection[Any]
Delivered = MessageTable | ForeignSource  # a table that a relay delivers
IDLE_SECONDS = 60  # how long a command may be idle in a transaction
_OPTIONS = "-c lock_timeout=10s -c search_path=pg_catalog -c synchronous_commit=on"
IN_TABLES = "the setting tables"  # where an operator corrects the connection string of a table source


class DatabaseUnreachable(ConfigurationError):  # noqa: N818 - the name describes the state of the database
    """The database of a message table does not answer, refuses the session, or is a standby."""


def remedy(error: ConfigurationError, dsn: str) -> str:
    if isinstance(error, DatabaseUnreachable):
        return connection_remedy(dsn, IN_TABLES, str(error))
    return f"correct {IN_TABLES}, or the rights of this role"


def refusal_to_write(dsn: str) -> str:
    """Return why a relay, which writes, gets no session in a database; empty: it gets one."""
    try:
        connect_dsn(dsn, autocommit=True, connect_timeout=CONNECT_SECONDS, target_session_attrs="read-write").close()
    except psycopg.Error as error:
        return connection_problem(error, dsn)
    return ""


def operator_session(silence: str, dsn: str, *, writes: bool) -> Connection:
    """Connect to a primary in autocommit; without `writes` the server sees to it that nothing is written.

    `silence` is the beginning of the sentence that it does not answer.
    """
    read_only = "" if writes else " -c default_transaction_read_only=on"
    try:
        return connect_dsn(
            dsn,
            autocommit=True,
            prepare_threshold=None,  # behind a pooler the next transaction may be on another server process
            connect_timeout=CONNECT_SECONDS,
            application_name="outbox-operator",
            target_session_attrs="primary",
            options=f"{_OPTIONS} {server_limits(IDLE_SECONDS)}{read_only}",
            statement_seconds=STATEMENT_SECONDS,
            tcp_user_timeout=10_000,
        )
    except psycopg.Error as error:
        raise DatabaseUnreachable(f"{silence}: {connection_problem(error, dsn)}") from error


@contextmanager
def opened_table(source: str, table: Delivered, dsn: str, *, writes: bool = False) -> Iterator[TableView]:
    """Open a table, see `operator_session()`; errors inside the block become sentences."""
    with operator_session(f"The database of table source {source} cannot be asked", dsn, writes=writes) as connection:
        try:
            yield TableView(table, connection)
        except psycopg.Error as error:
            role = connection.info.user
            right = f"--relay-role {written(role)}" if writes else ""
            right = table.relay_right(role) if isinstance(table, ForeignSource) else right
            explained = explanation_of(error, table.names.schema, table.names.source, right)
            raise (TableError if explained else ConfigurationError)(
                f"Table source {source}: {explained or query_problem(error)}"
            ) from error


def opened_rows(source: str, settings: TableSettings, *, writes: bool = False) -> AbstractContextManager[TableView]:
    """Open the message table of a source; a foreign table is a `ConfigurationError`."""
    return opened_table(source, MessageTable(settings.message_names()), settings.connection_string(), writes=writes)


_BY_TOPIC: LiteralString = (
    "WITH first AS (SELECT {known}, created_at FROM {message} ORDER BY id LIMIT %(most)s)"
    " SELECT topic, count(*), max(partition), min({started}) FROM first GROUP BY topic ORDER BY 4, 1"
)
_ROWS: LiteralString = "SELECT xid::text::bigint, id, {started}, {known}, key FROM {message} ORDER BY id LIMIT %(most)s"
_REASONS: LiteralString = "SELECT reason, count(*) FROM {discarded} GROUP BY reason"
_NOW: LiteralString = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"

_OF_ONE: LiteralString = (
    "SELECT xid::text::bigint, id, {started}, left(service, 200), coalesce(left(topic, 249), ''),"
    " coalesce(timestamp, {started} / 1000), "
)
_WAITING: LiteralString = f"{_OF_ONE} '', 0::bigint FROM {{message}} WHERE "
_SCHEDULED: LiteralString = (
    f"{_OF_ONE} 'not before ' || to_char(not_before AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC', 0::bigint"
    " FROM {scheduled} WHERE "
)
_LATER: LiteralString = (
    "SELECT count(*), count(*) FILTER (WHERE not_before < now() - interval '30 seconds')"
    " FROM (SELECT not_before FROM {scheduled} ORDER BY not_before LIMIT %(most)s) AS first"
)
_DISCARDED: LiteralString = (
    f"{_OF_ONE} reason || ': ' || detail, CAST(extract(epoch FROM discarded_at) * 1000 AS bigint)"
    " FROM {discarded} WHERE "
)
_LOCAL: LiteralString = "xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s ORDER BY id LIMIT %(most)s"
_OF_KEY: LiteralString = "key = %(key)s ORDER BY id LIMIT %(most)s"
_DELIVERED: LiteralString = (
    "SELECT xid::text::bigint, r.id, {started}, services[place], topics[place],"
    " least(earliest[place], {started} / 1000), 'batch ' || batch,"  # least skips NULL
    " CAST(extract(epoch FROM delivered_at) * 1000 AS bigint) FROM {delivered} AS b, {rows},"
    " coalesce(target, 1) AS place WHERE xid_range @> CAST(%(xid)s AS xid8)::text::bigint AND r.id IS NOT NULL"
    " AND xid = CAST(%(xid)s AS xid8) AND {started} = %(started)s ORDER BY r.id LIMIT %(most)s"
)
_SUCCESSORS: LiteralString = (
    "SELECT DISTINCT successor::text, CAST(extract(epoch FROM delivered_at) * 1000 AS bigint) FROM {delivered}"
    " WHERE xid_range @> CAST(%(xid)s AS xid8)::text::bigint AND successor IS NOT NULL"
    " AND starts[1] = timestamptz 'epoch' + %(started)s * interval '1 microsecond'"
)
_STATUS: LiteralString = "SELECT pg_xact_status(CAST(%s AS xid8))"
_BACKEND: LiteralString = (
    "SELECT pid FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted"
    " AND transactionid::text::bigint = %(xid)s %% 4294967296"
)

ROWS = 10_000  # rows of one transaction or key that are read of a table at most


class FoundRow(NamedTuple):
    """A row that waits or is discarded, or the evidence that it was delivered."""

    xid: int
    id: int
    started_us: int
    service: str
    topic: str
    stamped_ms: int  # the lowest timestamp that its record can have, ms since 1970
    detail: str  # why it is discarded, in which batch it was delivered, or for what time it waits; empty: it waits
    at_ms: int  # when that was, ms since 1970; 0: it waits


class TableView:
    """Reads one message table, and what belongs to it; of a foreign table, what belongs to it.

    All methods raise `psycopg.Error` if the database does not answer, or the tables or rights are missing.
    """

    def __init__(self, table: Delivered, connection: Connection) -> None:
        self.table = table
        self.connection = connection
        self._source = identifier(table.names.schema, table.names.source)

    def all(self, statement: LiteralString, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return self.connection.execute(self.table.compose(statement), parameters).fetchall()

    def now_ms(self) -> int:
        ((now,),) = self.all(_NOW)
        return int(now)

    def progress(self) -> tuple[str, Progress] | None:
        """Return the name under which the table is delivered, and the progress; None: it never was."""
        for name, *progress in self.all(PROGRESS):
            return name, Progress.read(*progress)
        return None

    def owner(self) -> Owner | None:
        row = self.connection.execute(OWNER, {"source": self._source}).fetchone()
        return None if row is None else Owner(*row)

    def halted(self) -> str:
        """Return why the last owner stopped; empty: it did not."""
        return "".join(why for (why,) in self.all(HALTED))

    def by_topic(self, most: int) -> list[TopicRows]:
        return [TopicRows(*row) for row in self.all(_BY_TOPIC, {"most": most})]

    def later(self, most: int) -> tuple[int, int]:
        """Return how many messages wait for their time, and how many of them are overdue; both at most `most`."""
        ((later, overdue),) = self.all(_LATER, {"most": most})
        return later, overdue

    def rows(self, most: int) -> list[WaitingRow]:
        return [WaitingRow(*row) for row in self.all(_ROWS, {"most": most})]

    def discarded(self) -> dict[str, int]:
        return dict(self.all(_REASONS))

    def find(self, wanted: str | bytes) -> tuple[list[FoundRow], list[FoundRow]]:
        """Return the rows that wait, and those that are discarded, of a local transaction by its id, or of a key.

        By key the message table is scanned, whose rows are few by nature.
        """
        which = _OF_KEY if isinstance(wanted, bytes) else _LOCAL
        parameters = {"most": ROWS, **({"key": wanted} if isinstance(wanted, bytes) else local_of(wanted))}
        waiting = self.all(_SCHEDULED + which, parameters)  # before those that wait: none is missed
        waiting += self.all(_WAITING + which, parameters)
        discarded = self.all(_DISCARDED + which, parameters)
        return [FoundRow(*row) for row in waiting], [FoundRow(*row) for row in discarded]

    def find_delivered(self, transaction_id: str) -> list[FoundRow]:
        """Return the evidence of the rows of a local transaction (R61)."""
        return [FoundRow(*row) for row in self.all(_DELIVERED, {**local_of(transaction_id), "most": ROWS})]

    def successors(self, transaction_id: str) -> list[tuple[str, int]]:
        """Return as which transactions discarded rows were delivered again, and when, ms since 1970."""
        return [(new, at_ms) for new, at_ms in self.all(_SUCCESSORS, local_of(transaction_id))]

    def was_rolled_back(self, xid: int) -> bool:
        """Return whether the server has it of the last transaction with an xid that it was rolled back."""
        try:
            return self.connection.execute(_STATUS, (str(xid),)).fetchone() == ("aborted",)
        except psycopg.errors.InvalidParameterValue:  # it was not assigned
            return False

    def backend_of(self, xid: int) -> int | None:
        row = self.connection.execute(_BACKEND, {"xid": xid}).fetchone()
        return None if row is None else int(row[0])


def local_of(transaction_id: str) -> dict[str, Any]:
    return {"xid": str(xid_of(transaction_id)), "started": started_us_of(transaction_id)}
