"""Inspect transactions in a producers' database without a trace, or decide them by an operator's row.

Looking is a plain SELECT in a read-only connection, and takes no lock. Deciding is as the checker does it: advisory
lock, row, COMMIT that waits for the disk, then a separate read (R8, R9).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, LiteralString

import psycopg

from checker.connection import connect
from checker.database import by_database
from checker.fencing.fence import DiscardLookup, Fence
from checker.operator.rulings import SourceState, of_row
from checker.rules.verdicts import Answers, Row, read_row
from checker.settings import DatabaseSettings
from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connection_problem
from outbox.errors import CallbackTableError, ConfigurationError
from outbox.protocol.check import CheckRequest
from outbox.protocol.identifiers import lock_number
from outbox.protocol.op import OpKind

NO_INCARNATION = "none"
"""How an operator names the incarnation of halves that name none."""

IDLE_SECONDS = 60
"""How long a decision may be idle in its transaction: it reads the discard topic there."""

_READ: LiteralString = (
    "SELECT transaction_id::text, state, half_topic_id::text, half_partition, first_offset, last_offset, positions,"
    " (extract(epoch FROM created_at) * 1000)::bigint FROM {transaction} WHERE transaction_id = ANY (%s::uuid[])"
)
_INCARNATION: LiteralString = "SELECT value FROM {meta} WHERE key = 'incarnation'"
_WATERMARKS: LiteralString = "SELECT key, value::bigint FROM {meta} WHERE key = ANY (%s)"
_HOLDERS: LiteralString = (
    "SELECT l.classid::bigint, l.objid::bigint, l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted"
)
_TRY_LOCK: LiteralString = "SELECT pg_try_advisory_xact_lock(%s)"
_INSERT: LiteralString = (
    "INSERT INTO {transaction} (transaction_id, producer_group, state, channel, half_topic_id, half_partition,"
    " first_offset, last_offset, positions) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (transaction_id) DO NOTHING"
)
_WRITE: LiteralString = "UPDATE {fence} SET written_at = clock_timestamp() WHERE id = 0"


@dataclass(frozen=True, slots=True)
class DatabaseStatus:
    """State of a transaction in a database.

    Args:
        database: Name of the database in the checker's settings; empty for none.
        created_ms: When the row was made, ms since 1970 by the database's clock; 0 without.
        holder: Process id of the backend whose local transaction is open; None if there is none.
        incarnation: Of the database of today.
        placed: Whether the row is the operator's, placed just now.
    """

    standing: SourceState
    database: str
    row: Row | None = None
    created_ms: int = 0
    holder: int | None = None
    incarnation: str | None = None
    placed: bool = False


def database_of(request: CheckRequest, databases: Mapping[str, DatabaseSettings]) -> str | None:
    """Name of the database of a transaction's producer group; None: it is unmapped."""
    mapped, _ = by_database([request], databases)
    return next(iter(mapped), None)


class DatabaseView:
    """The callback tables of one database, for one operator's command."""

    def __init__(self, name: str, settings: DatabaseSettings, channel: str) -> None:
        self._name = name
        self._settings = settings
        self._table = CallbackTable(settings.tables())
        self._channel = channel

    def look(
        self, requests: Sequence[CheckRequest], alive: frozenset[str] = frozenset(), gone: str | None = None
    ) -> dict[str, DatabaseStatus]:
        """Return the present state of transactions; write nothing and take no lock.

        Args:
            requests: Of groups of this database.
            alive: Ids of transactions that are alive in the discard topic: their rows are never purged.
            gone: An incarnation of this database that an operator confirms as lost for good.
        """
        with self._connect(writes=False) as connection:
            incarnation = self._incarnation(connection)
            holders = _holders(connection)  # before the rows: who has committed since has one
            rows = self._read(connection, [request.transaction_id for request in requests])
            purged = self._watermarks(connection, requests)  # after the rows: what has gone is below it
            return {
                request.transaction_id: self._seen(request, rows, holders, purged, incarnation, alive, gone)
                for request in requests
            }

    def fence(self, requests: Sequence[CheckRequest], in_discard_topic: DiscardLookup, gone: str | None) -> Answers:
        """Roll back many transactions as the checker does: a rollback row is the row of each that has none.

        Args:
            requests: Of groups of this database.
            in_discard_topic: Looks up which transactions are in the discard topic: their rows cannot have been purged.

        Raises:
            ConfigurationError: The database does not answer, is read-only, or its role may not. Earlier
                decisions are kept, and the same command will find them.
        """
        with self._connect(writes=True) as connection:
            today = self._incarnation(connection)
            known = [
                replace(request, incarnation=today) if _foreign_and_gone(request, today, gone) else request
                for request in requests
            ]
            return Fence(self._table, self._channel, in_discard_topic=in_discard_topic).check(connection, known)

    def decide(
        self, request: CheckRequest, kind: OpKind, *, alive: Callable[[], bool], gone: str | None
    ) -> DatabaseStatus:
        """Make an operator's decision the row, unless there is one, or the local transaction is open.

        The row is on the disk, and on the synchronous standbys, when this returns. Its decision counts.

        Args:
            kind: COMMIT or ROLLBACK.
            alive: Returns whether it is alive in the discard topic at present: then its row cannot have been purged.

        Raises:
            ConfigurationError: The database does not answer, is read-only, or its role may not; nothing was decided,
                or it is decided and the same command will find that.
        """
        with self._connect(writes=True) as connection:
            incarnation = self._incarnation(connection)
            if _foreign(request, incarnation, gone):
                return DatabaseStatus(SourceState.MISMATCH, self._name, incarnation=incarnation)
            placed = self._place(connection, request, kind, alive)
            failpoint("resolve.placed")
            holders = _holders(connection)
            rows = self._read(connection, [request.transaction_id])
            known = frozenset([request.transaction_id] if not rows and alive() else [])
            purged = self._watermarks(connection, [request])
            seen = self._seen(request, rows, holders, purged, incarnation, known, gone)
            if seen.standing is SourceState.COMMITTED:
                self._write(connection)
            return replace(seen, placed=placed)

    def _place(
        self, connection: psycopg.Connection[Any], request: CheckRequest, kind: OpKind, alive: Callable[[], bool]
    ) -> bool:
        """Insert the row where the lock is free, and where none can have been purged (R11).

        The INSERT waits for a purge that deletes the same row at this moment, and then takes it for one that was never
        there: a second look sees the watermark of that purge. A discarded transaction must be in the discard topic
        before and after: once it leaves it is settled, and its row may be purged.
        """
        try:
            with self._durable(connection):
                if self._try_lock(connection, request) and not self._may_be_purged(connection, request, alive):
                    return self._insert(connection, request, kind, alive)
        except psycopg.errors.LockNotAvailable:  # another transaction has inserted the row, and is still open
            pass
        return False

    def _insert(
        self, connection: psycopg.Connection[Any], request: CheckRequest, kind: OpKind, alive: Callable[[], bool]
    ) -> bool:
        """Whether the row is new.

        Raises:
            Rollback: It may have been there, and been purged meanwhile: this one would be wrong.
        """
        values = (request.transaction_id, request.group, str(kind), self._channel, *_columns(request))
        placed = connection.execute(self._table.compose(_INSERT), values).rowcount == 1
        if placed and self._may_be_purged(connection, request, alive):
            raise psycopg.Rollback
        return placed

    def _may_be_purged(
        self, connection: psycopg.Connection[Any], request: CheckRequest, alive: Callable[[], bool]
    ) -> bool:
        return _is_purged(request, self._watermarks(connection, [request])) and not alive()

    def _try_lock(self, connection: psycopg.Connection[Any], request: CheckRequest) -> bool:
        """Whether the local transaction is not open, and cannot become so before this transaction ends."""
        found = connection.execute(_TRY_LOCK, (lock_number(request.transaction_id),)).fetchone()
        return bool(found and found[0])

    def _write(self, connection: psycopg.Connection[Any]) -> None:
        """Make a COMMIT durable before it is reported, whichever process placed its row (R9)."""
        with self._durable(connection):
            connection.execute(self._table.compose(_WRITE))

    def _seen(
        self,
        request: CheckRequest,
        rows: dict[str, tuple[Row, int]],
        holders: dict[int, int],
        purged: Mapping[str, int],
        incarnation: str | None,
        alive: frozenset[str],
        gone: str | None,
    ) -> DatabaseStatus:
        if _foreign(request, incarnation, gone):
            return DatabaseStatus(SourceState.MISMATCH, self._name, incarnation=incarnation)
        if request.transaction_id in rows:
            row, created = rows[request.transaction_id]
            standing = of_row(row, request.topic_id)
            return DatabaseStatus(standing, self._name, row, created, incarnation=incarnation)
        holder = holders.get(lock_number(request.transaction_id))
        if holder is not None:
            return DatabaseStatus(SourceState.OPEN, self._name, holder=holder, incarnation=incarnation)
        if request.transaction_id not in alive and _is_purged(request, purged):
            return DatabaseStatus(SourceState.PURGED, self._name, incarnation=incarnation)
        return DatabaseStatus(SourceState.NO_ROW, self._name, incarnation=incarnation)

    def rows_of(self, ids: Sequence[str]) -> dict[str, tuple[Row, int]]:
        """Return the rows of transactions, with their creation times, ms since 1970."""
        with self._connect(writes=False) as connection:
            return self._read(connection, ids)

    def _watermarks(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> dict[str, int]:
        """Return the purge watermarks of some transactions' half partitions, by key."""
        keys = sorted({_watermark_key(request) for request in requests})
        return dict(connection.execute(self._table.compose(_WATERMARKS), (keys,)).fetchall())

    def _incarnation(self, connection: psycopg.Connection[Any]) -> str | None:
        found = connection.execute(self._table.compose(_INCARNATION)).fetchone()
        return None if found is None else str(found[0])

    def _read(self, connection: psycopg.Connection[Any], ids: Sequence[str]) -> dict[str, tuple[Row, int]]:
        rows = connection.execute(self._table.compose(_READ), (list(ids),)).fetchall()
        return {
            id_: (read_row(state, topic_id, partition, first, last, positions), created)
            for id_, state, topic_id, partition, first, last, positions, created in rows
        }

    @contextmanager
    def _connect(self, *, writes: bool) -> Iterator[psycopg.Connection[Any]]:
        """Connect to the database, and verify it."""
        try:
            connection = connect(self._settings, "operator", writes=writes, idle_seconds=IDLE_SECONDS)
        except psycopg.Error as error:
            reason = connection_problem(error, self._settings.connection_string())
            raise ConfigurationError(f"database {self._name!r} does not answer: {reason}") from error
        try:
            with connection:
                self._table.verify(connection)
                yield connection
        except CallbackTableError as error:
            raise CallbackTableError(f"database {self._name!r}: {error}") from error
        except psycopg.Error as error:
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigurationError(
                f"database {self._name!r}: {type(error).__name__}: {first_line}; run it again to list what is decided"
            ) from error

    @contextmanager
    def _durable(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """One transaction whose COMMIT waits for the disk, and for the standbys if there are synchronous ones."""
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE")
            connection.execute("SET LOCAL synchronous_commit = on")
            connection.execute("SET LOCAL lock_timeout = '1500ms'")
            yield


def _foreign(request: CheckRequest, incarnation: str | None, gone: str | None) -> bool:
    """Whether its halves name another incarnation (R10), which is not gone for good."""
    return request.incarnation != incarnation and (gone is None or gone != (request.incarnation or NO_INCARNATION))


def _foreign_and_gone(request: CheckRequest, incarnation: str | None, gone: str | None) -> bool:
    """Whether its halves name another incarnation, which is gone for good: the database of today is the truth."""
    return _foreign(request, incarnation, None) and not _foreign(request, incarnation, gone)


def _watermark_key(request: CheckRequest) -> str:
    return f"purged/{request.topic_id}/{request.partition}"


def _is_purged(request: CheckRequest, watermarks: Mapping[str, int]) -> bool:
    """Whether its row may have been purged: as the checker's own rule (R11)."""
    return watermarks.get(_watermark_key(request), 0) > request.last_offset


def _holders(connection: psycopg.Connection[Any]) -> dict[int, int]:
    """Process ids of the backends that hold advisory locks in this database, by the numbers of these."""
    found = connection.execute(_HOLDERS).fetchall()
    return {int.from_bytes((high << 32 | low).to_bytes(8, "big"), "big", signed=True): pid for high, low, pid in found}


def _columns(request: CheckRequest) -> tuple[str, int, int, int, str]:
    return (
        request.topic_id,
        request.partition,
        request.first_offset,
        request.last_offset,
        str(request.positions),
    )
