"""The fencing check-back: one batch of transactions of one database, in a few round trips.

Advisory locks first, so that an open local transaction delays only its own id; then tombstones for those whose lock
was free; then a separate read (R8); then one synchronous write, so that a COMMITTED that is published is durable (R9).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, LiteralString

import psycopg
import structlog
from psycopg import sql

from checker.verdicts import Row, Verdict
from outbox.callback_table import CallbackTable
from outbox.errors import OutboxError
from outbox.failpoints import failpoint
from outbox.protocol.check import CheckRequest
from outbox.protocol.identifiers import lock_number
from outbox.protocol.positions import Positions

log = structlog.get_logger()

BATCH = 500
"""Transactions of one statement."""

LOCK_TIMEOUT_MS = 1_500

_BEGIN: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_INCARNATION: LiteralString = "SELECT value FROM {meta} WHERE key = 'incarnation'"
_TRY_LOCKS: LiteralString = (
    "SELECT id FROM unnest(%s::uuid[], %s::bigint[]) AS asked (id, number) WHERE pg_try_advisory_xact_lock(number)"
)
_FENCE: LiteralString = """
INSERT INTO {transaction} (transaction_id, producer_group, state, channel, half_topic_id, half_partition,
                           first_offset, last_offset, positions)
SELECT asked.id, asked.producer_group, 'R', %s, asked.topic_id, asked.partition,
       asked.first, asked.last, asked.positions
  FROM unnest(%s::uuid[], %s::text[], %s::uuid[], %s::int[], %s::bigint[], %s::bigint[], %s::text[])
       AS asked (id, producer_group, topic_id, partition, first, last, positions)
 WHERE asked.id = ANY (%s::uuid[])
    OR NOT EXISTS (SELECT FROM {meta} WHERE key = 'purged/' || asked.topic_id || '/' || asked.partition
                                        AND CASE WHEN key LIKE 'purged/%%' THEN value::bigint > asked.last END)
 ORDER BY asked.id
ON CONFLICT (transaction_id) DO NOTHING
RETURNING transaction_id::text
"""
_OVERTAKEN: LiteralString = """
SELECT count(*) FROM {transaction} AS fenced
  JOIN {meta} AS purged ON purged.key = 'purged/' || fenced.half_topic_id || '/' || fenced.half_partition
 WHERE fenced.transaction_id = ANY (%s::uuid[])
   AND CASE WHEN purged.key LIKE 'purged/%%' THEN purged.value::bigint > fenced.last_offset END
"""
_READ: LiteralString = (
    "SELECT transaction_id::text, state, half_topic_id::text, half_partition, first_offset, last_offset, positions"
    " FROM {transaction} WHERE transaction_id = ANY (%s::uuid[])"
)
_WRITE: LiteralString = "UPDATE {fence} SET written_at = clock_timestamp() WHERE id = 0"

Answers = dict[str, tuple[Verdict, Row | None]]
Lying = Callable[[Collection[str]], Collection[str]]
"""Tells which of some transactions lie in the discard topic now, none if that cannot be told."""


class _OvertakenError(Exception):
    """A row was purged between the look at the watermark and the tombstone: the tombstone would be a lie."""


_RETRY = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, _OvertakenError)


class Fence:
    """Asks one database.

    Args:
        table: Its callback tables.
        channel: Name of the channel, for tombstones.
        lying: Tells what lies in the discard topic; without it nothing below the purge watermark is fenced.
    """

    def __init__(self, table: CallbackTable, channel: str, lying: Lying | None = None) -> None:
        self._table = table
        self._channel = channel
        self._lying = lying

    def check(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> Answers:
        """Decide what can be decided.

        Args:
            connection: In autocommit, to a writable primary: the tombstone proves that it is one.
            requests: Of groups of this database; one per transaction.

        Returns:
            Verdict and row by transaction id.

        Raises:
            psycopg.Error: The database does not answer, or refuses; nothing was decided for the rest.
        """
        answers: Answers = {}
        ordered = sorted(requests, key=lambda request: request.transaction_id)
        for start in range(0, len(ordered), BATCH):
            self._halving(connection, ordered[start : start + BATCH], answers)
        below = [request for request in ordered if answers[request.transaction_id][0] is Verdict.PURGED]
        if below and self._lying is not None:
            answers |= self._fence_lying(connection, below, self._lying)
        if any(verdict is Verdict.COMMITTED for verdict, _ in answers.values()):
            _durably(connection, lambda: connection.execute(self._table.compose(_WRITE)))
        failpoint("checker.decided")
        return answers

    def _halving(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest], answers: Answers) -> None:
        """On a lock wait or a deadlock, halve the batch, down to one id: that one is in flight."""
        try:
            answers |= self._check(connection, batch)
        except _RETRY:
            if len(batch) == 1:
                answers[batch[0].transaction_id] = (Verdict.IN_FLIGHT, None)
                return
            middle = len(batch) // 2
            self._halving(connection, batch[:middle], answers)
            self._halving(connection, batch[middle:], answers)

    def _check(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> Answers:
        foreign = self._foreign(connection, batch)
        asked = [request for request in batch if request.transaction_id not in foreign]
        locked = self._fence_unlocked(connection, asked)
        rows = self._read(connection, [request.transaction_id for request in asked])
        answers: Answers = dict.fromkeys(foreign, (Verdict.MISMATCH, None))
        for request in asked:
            id_ = request.transaction_id
            answers[id_] = (_verdict(rows.get(id_), locked=id_ in locked), rows.get(id_))
        return answers

    def _foreign(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> set[str]:
        """Transactions whose half names another incarnation: a wrong or restored database never decides (R10)."""
        row = connection.execute(self._table.compose(_INCARNATION)).fetchone()
        incarnation = row[0] if row else None
        return {request.transaction_id for request in batch if request.incarnation != incarnation}

    def _fence_unlocked(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> set[str]:
        """Insert tombstones where the lock was free, in one transaction.

        Returns:
            The ids whose lock was free.
        """
        locked: set[str] = set()

        def fence() -> None:
            ids = [request.transaction_id for request in batch]
            numbers = [lock_number(id_) for id_ in ids]
            locked.update(str(id_) for (id_,) in connection.execute(_TRY_LOCKS, (ids, numbers)))
            failpoint("checker.locked")
            free = [request for request in batch if request.transaction_id in locked]
            self._insert_tombstones(connection, free)

        _durably(connection, fence)
        failpoint("checker.fenced")
        return locked

    def _insert_tombstones(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> None:
        """Insert tombstones, but none below the purge watermark (R11).

        The INSERT waits for a purge that deletes the same row at this moment, and then takes it for one that was never
        there; but a second look sees the watermark of that purge.

        Raises:
            _OvertakenError: That has happened: nothing of it may be committed.
        """
        parameters = (self._channel, *_columns(batch), [])
        fenced = [id_ for (id_,) in connection.execute(self._table.compose(_FENCE), parameters)]
        if fenced and connection.execute(self._table.compose(_OVERTAKEN), (fenced,)).fetchone() != (0,):
            raise _OvertakenError

    def _fence_lying(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest], lying: Lying) -> Answers:
        """Fence what lies in the discard topic below the watermark: no row of it is ever purged.

        It must lie there before the tombstone and after it: what leaves the discard topic is settled, and its row may
        go.

        Returns:
            The answers that are definite now.
        """
        try:
            found = lying([request.transaction_id for request in batch])
            chosen = [request for request in batch if request.transaction_id in found]
            if chosen:
                _durably(connection, lambda: self._insert_lying(connection, chosen, lying))
        except (OutboxError, *_RETRY) as error:
            log.warning("what lies below the purge watermark stays undecided for now", reason=str(error))
            return {}
        rows = self._read(connection, [request.transaction_id for request in chosen])
        return {id_: (_verdict(row, locked=True), row) for id_, row in rows.items()}

    def _insert_lying(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest], lying: Lying) -> None:
        ids = [request.transaction_id for request in batch]
        tried = connection.execute(_TRY_LOCKS, (ids, [lock_number(id_) for id_ in ids]))
        locked = {str(id_) for (id_,) in tried}
        free = [request for request in batch if request.transaction_id in locked]
        connection.execute(self._table.compose(_FENCE), (self._channel, *_columns(free), list(locked)))
        if not locked <= set(lying(locked)):
            raise _OvertakenError("some of it has left the discard topic meanwhile")

    def _read(self, connection: psycopg.Connection[Any], ids: Sequence[str]) -> dict[str, Row]:
        rows = connection.execute(self._table.compose(_READ), (list(ids),)).fetchall()
        return {
            id_: Row(state == "C", topic_id, partition, first, last, Positions.parse(positions))
            for id_, state, topic_id, partition, first, last, positions in rows
        }


def _verdict(row: Row | None, *, locked: bool) -> Verdict:
    """A row decides; without one, a lock that was free means that the watermark kept the tombstone away (R11)."""
    if row is not None:
        return Verdict.COMMITTED if row.committed else Verdict.FENCED
    return Verdict.PURGED if locked else Verdict.IN_FLIGHT


def _durably(connection: psycopg.Connection[Any], statements: Callable[[], object]) -> None:
    """One transaction whose COMMIT waits for the disk, and for the standbys if there are synchronous ones (R9)."""
    connection.execute(_BEGIN)
    try:
        connection.execute("SET LOCAL synchronous_commit = on")
        connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{LOCK_TIMEOUT_MS}ms")))
        statements()
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _columns(batch: Sequence[CheckRequest]) -> tuple[list[Any], ...]:
    return (
        [request.transaction_id for request in batch],
        [request.group for request in batch],
        [request.topic_id for request in batch],
        [request.partition for request in batch],
        [request.first_offset for request in batch],
        [request.last_offset for request in batch],
        [str(request.positions) for request in batch],
    )
