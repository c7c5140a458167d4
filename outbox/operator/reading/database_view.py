"""Inspect transactions in a producers' database without a trace, or decide them by an operator's row.

Looking is a plain SELECT in a read-only connection, and takes no lock. Deciding is as the checker does it: advisory
lock, row, COMMIT that waits for the disk, then a separate read (R8, R9).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import LiteralString, NamedTuple

import psycopg

from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackTable
from outbox._rules.callback_row import Row, read_row
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError, TableError
from outbox.operator.reading.table_view import Connection, operator_session
from outbox.operator.state.rulings import SourceState, of_row
from outbox.protocol.check import CheckRequest
from outbox.protocol.identifiers import lock_number
from outbox.protocol.op import OpKind

NO_INCARNATION = "none"  # how an operator names the incarnation of halves that name none

_READ: LiteralString = (
    "SELECT transaction_id::text, state, half_topic_id::text, half_partition, first_offset, last_offset, positions,"
    " (extract(epoch FROM created_at) * 1000)::bigint FROM {transaction} WHERE transaction_id = ANY (%s::uuid[])"
)
_WATERMARKS: LiteralString = "SELECT key, value::bigint FROM {meta} WHERE key = ANY (%s)"
_HOLDERS: LiteralString = (
    "SELECT l.classid::bigint, l.objid::bigint, l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted"
)
_TRY_LOCKS: LiteralString = (
    "SELECT id::text FROM unnest(%s::uuid[], %s::bigint[]) AS asked (id, number)"
    " WHERE pg_try_advisory_xact_lock(number)"
)
_INSERT: LiteralString = (
    "INSERT INTO {transaction} (transaction_id, service, state, channel, half_topic_id, half_partition, first_offset,"
    " last_offset, positions) SELECT id, service, %s, %s, topic_id, partition, first, last, positions"
    " FROM unnest(%s::uuid[], %s::text[], %s::uuid[], %s::integer[], %s::bigint[], %s::bigint[], %s::text[])"
    " AS one (id, service, topic_id, partition, first, last, positions)"
    " ON CONFLICT (transaction_id) DO NOTHING RETURNING transaction_id::text"
)
_WRITE: LiteralString = "UPDATE {fence} SET written_at = clock_timestamp() WHERE id = 0"
LOCKS = 500  # that one transaction takes: with default settings all sessions together may hold about 6,400


class DatabaseStatus(NamedTuple):
    """State of a transaction in a database."""

    standing: SourceState
    database: str | None  # name of the database in the checker's settings; None: none is configured
    row: Row | None = None
    holder: int | None = None  # process id of the backend whose local transaction is open; None if there is none
    incarnation: str | None = None
    placed: bool = False  # whether the row is the operator's, placed just now


Alive = Callable[[Collection[str]], Collection[str]]
"""Return those of some transactions that are alive in the discard topic: their rows cannot have been purged."""


@dataclass
class DatabaseView:
    """The callback tables of a database, for one command."""

    name: str
    settings: CheckerDatabase
    channel: str
    alive: Alive = lambda _: ()
    gone: str | None = None  # an incarnation that is confirmed as lost

    def __post_init__(self) -> None:
        self._table = CallbackTable(self.settings.table_names())

    def look(self, requests: Sequence[CheckRequest]) -> dict[str, DatabaseStatus]:
        """Return the present state of transactions; write nothing and take no lock."""
        with self._connect(writes=False) as connection:
            return self._look(connection, self._table.incarnation(connection), requests)

    def decide(self, requests: Sequence[CheckRequest], kind: OpKind) -> dict[str, DatabaseStatus]:
        """Make an operator's decision the row of transactions that have none, and are not open.

        The rows are on the disk, and on the synchronous standbys, when this returns. After an error, the same command
        finds what is decided.
        """
        with self._connect(writes=True) as connection:
            today = self._table.incarnation(connection)
            ours = [request for request in requests if not self._is_foreign(request, today)]
            parts = (ours[start : start + LOCKS] for start in range(0, len(ours), LOCKS))
            placed = set[str]().union(*(self._place(connection, part, kind) for part in parts))
            failpoint("resolve.placed")
            seen = self._look(connection, today, requests, placed)
            if any(one.standing is SourceState.COMMITTED for one in seen.values()):
                with self._durable(connection):  # whichever process placed its row (R9)
                    connection.execute(self._table.compose(_WRITE))
            return seen

    def _place(self, connection: Connection, requests: Sequence[CheckRequest], kind: OpKind) -> set[str]:
        """Insert the rows where the lock is free, and where none can have been purged (R11); return the new ones.

        The INSERT waits for a purge that deletes the same row at this moment, and then takes it for one that was never
        there: a second look sees the watermark of that purge. A discarded transaction must be in the discard topic
        before and after: once it leaves it is settled, and its row may be purged. What fails for one of many is tried
        for each alone.
        """
        try:
            with self._durable(connection):
                free = self._lock(connection, requests)
                able = [request for request in requests if request.transaction_id in free]
                purged = self._purged(connection, able)
                able = [request for request in able if request.transaction_id not in purged]
                new = self._insert(connection, able, kind)
                if self._purged(connection, [request for request in able if request.transaction_id in new]):
                    raise psycopg.Rollback
                return new
        except psycopg.errors.LockNotAvailable:  # another transaction has inserted a row, and is still open
            pass
        if len(requests) <= 1:
            return set()
        return set[str]().union(*(self._place(connection, [request], kind) for request in requests))

    def _insert(self, connection: Connection, able: Sequence[CheckRequest], kind: OpKind) -> set[str]:
        names = ("transaction_id", "service", "topic_id", "partition", "first_offset", "last_offset")
        columns = [[getattr(request, name) for request in able] for name in names]
        values = (str(kind), self.channel, *columns, [str(request.positions) for request in able])
        return {id_ for (id_,) in connection.execute(self._table.compose(_INSERT), values).fetchall()}

    def _purged(self, connection: Connection, requests: Sequence[CheckRequest]) -> set[str]:
        """Return of which transactions the row may have been purged."""
        if not requests:
            return set()
        keys = sorted({_watermark_key(request) for request in requests})
        watermarks = dict(connection.execute(self._table.compose(_WATERMARKS), (keys,)).fetchall())
        below = {request.transaction_id for request in requests if _is_purged(request, watermarks)}
        return below.difference(self.alive(below)) if below else below

    def _lock(self, connection: Connection, requests: Sequence[CheckRequest]) -> set[str]:
        """Return whose local transaction is not open, and cannot become so before this transaction ends."""
        ids = sorted(request.transaction_id for request in requests)
        return {id_ for (id_,) in connection.execute(_TRY_LOCKS, (ids, list(map(lock_number, ids)))).fetchall()}

    def _look(
        self, connection: Connection, today: str | None, requests: Sequence[CheckRequest], placed: Collection[str] = ()
    ) -> dict[str, DatabaseStatus]:
        locks = connection.execute(_HOLDERS).fetchall()  # before the rows: who has committed since has one
        holders = {int.from_bytes((high << 32 | low).to_bytes(8), signed=True): pid for high, low, pid in locks}
        rows = self._read(connection, [request.transaction_id for request in requests])
        absent = [request for request in requests if request.transaction_id not in rows]
        purged = self._purged(connection, absent)  # after the rows: what has gone is below the watermark

        def status(request: CheckRequest) -> DatabaseStatus:
            id_, row, holder = request.transaction_id, None, None
            if self._is_foreign(request, today):
                standing = SourceState.MISMATCH
            elif id_ in rows:
                row, _ = rows[id_]
                standing = of_row(row, request.topic_id)
            elif (holder := holders.get(lock_number(id_))) is not None:
                standing = SourceState.OPEN
            else:
                standing = SourceState.PURGED if id_ in purged else SourceState.NO_ROW
            return DatabaseStatus(standing, self.name, row, holder, today, id_ in placed)

        return {request.transaction_id: status(request) for request in requests}

    def _is_foreign(self, request: CheckRequest, today: str | None) -> bool:
        """Return whether its halves name another incarnation (R10), which is not gone for good."""
        return request.incarnation != today and self.gone != (request.incarnation or NO_INCARNATION)

    def rows_of(self, ids: Sequence[str]) -> dict[str, tuple[Row, int]]:
        with self._connect(writes=False) as connection:
            return self._read(connection, ids)

    def _read(self, connection: Connection, ids: Sequence[str]) -> dict[str, tuple[Row, int]]:
        rows = connection.execute(self._table.compose(_READ), (list(ids),)).fetchall()
        return {
            id_: (read_row(state, topic_id, partition, first, last, positions), created)
            for id_, state, topic_id, partition, first, last, positions, created in rows
        }

    @contextmanager
    def _connect(self, *, writes: bool) -> Iterator[Connection]:
        silence, dsn = f"database {self.name!r} does not answer", self.settings.connection_string()
        try:
            with operator_session(silence, dsn, writes=writes) as connection:
                self._table.verify(connection)
                yield connection
        except TableError as error:
            raise TableError(f"database {self.name!r}: {error}") from error
        except psycopg.Error as error:
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            why = f"database {self.name!r}: {type(error).__name__}: {first_line}; run it again to list what is decided"
            raise ConfigurationError(why) from error

    @contextmanager
    def _durable(self, connection: Connection) -> Iterator[None]:
        """One transaction whose COMMIT waits for the disk, and for the standbys if there are synchronous ones."""
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE")
            connection.execute("SET LOCAL synchronous_commit = on")
            connection.execute("SET LOCAL lock_timeout = '1500ms'")
            yield


def _watermark_key(request: CheckRequest) -> str:
    return f"purged/{request.topic_id}/{request.partition}"


def _is_purged(request: CheckRequest, watermarks: Mapping[str, int]) -> bool:
    """Whether its row may have been purged: as the checker's own rule (R11)."""
    return watermarks.get(_watermark_key(request), 0) > request.last_offset
