"""The fencing check-back: one batch of transactions of one database, in a few round trips.

Rows that are there decide. For the others: advisory locks first, so that an open local transaction delays only its own
id; then rollback rows for those whose lock was free; then a separate read (R8); then one synchronous write, so that a
COMMITTED that is published is durable (R9). A transaction below the purge watermark is fenced only while it is in the
discard topic (R11).

No statement is sent in a pipeline: between the commands of a pipeline the server waits without any time limit, so a
process that freezes there would keep its locks (R41).
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, NamedTuple, Protocol

import psycopg
import structlog
from psycopg.errors import Diagnostic
from psycopg.pq import TransactionStatus

from checker.connection import database_ms
from checker.fencing.callback_rows import OvertakenError, foreign, place_rollback_rows, read_rows
from checker.rules.breaker import Breaker, Evidence, Policy, State
from checker.rules.verdicts import Answers, Verdict, of_row
from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackTable
from outbox._rules.callback_row import Row
from outbox.errors import OutboxError
from outbox.protocol.check import CheckRequest
from outbox.protocol.identifiers import lock_number, make_transaction_id

log = structlog.get_logger()

NEWEST = 10_000
"""How many of the newest rows of the table are looked at, by the primary key."""

_AHEAD_MS = 3_600_000
"""Ids from further in the future are of no clock: they would be the newest for ever."""

_EVIDENCE: LiteralString = """
WITH newest AS (
    SELECT transaction_id, state
      FROM (SELECT transaction_id, state, service, half_topic_id FROM {transaction}
             WHERE transaction_id < %s::uuid ORDER BY transaction_id DESC LIMIT %s) AS latest
     WHERE service = %s AND half_topic_id = %s::uuid
), committed AS (
    SELECT transaction_id FROM newest WHERE state = 'C' ORDER BY transaction_id DESC LIMIT 1
)
SELECT coalesce((SELECT transaction_id::text FROM committed), ''),
       (SELECT count(*) FROM newest
         WHERE state = 'R'
           AND NOT EXISTS (SELECT FROM committed WHERE committed.transaction_id > newest.transaction_id))
"""

_Key = tuple[str, str]
"""Service, and id of the half topic."""


class Breakers:
    """Decide which transactions of one database may be fenced."""

    def __init__(self, name: str, table: CallbackTable, policy: Policy) -> None:
        self._name = name
        self._table = table
        self._breakers: dict[_Key, Breaker] = defaultdict(lambda: Breaker(policy))

    def admit(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> set[str]:
        """Return the ids of those that may be fenced; none has a row or an open local transaction."""
        by_service: dict[_Key, list[str]] = defaultdict(list)
        for request in requests:
            by_service[request.service, request.topic_id].append(request.transaction_id)
        return {id_ for key, ids in by_service.items() for id_ in self._admit(connection, key, ids)}

    def open(self) -> int:
        """How many services are not fenced at present."""
        return sum(breaker.state is not State.CLOSED for breaker in self._breakers.values())

    def _admit(self, connection: psycopg.Connection[Any], key: _Key, ids: Sequence[str]) -> Sequence[str]:
        breaker, now = self._breakers[key], time.monotonic()
        before = breaker.state
        offered = breaker.offered(ids, now)
        if not offered:
            return ()
        if not breaker.wants_evidence(len(offered)):
            breaker.count(offered)
            return offered
        admitted = breaker.judge(offered, self._evidence(connection, key), now)
        if breaker.state is not before:
            self._say(key[0], breaker.state, len(ids))
        return offered if admitted else ()

    def _say(self, service: str, state: State, count: int) -> None:
        if state is State.CLOSED:
            log.info("Circuit breaker closed: the service commits again", database=self._name, service=service)
            return
        log.error(
            "the circuit breaker is open: this service commits nothing in this database any more, and so nothing"
            " is fenced; see that it is the service's own database and no copy of it",
            database=self._name,
            service=service,
            waiting=count,
        )

    def _evidence(self, connection: psycopg.Connection[Any], key: _Key) -> Evidence:
        last = make_transaction_id(database_ms(connection) + _AHEAD_MS, b"\0" * 10)
        row = connection.execute(self._table.compose(_EVIDENCE), (last, NEWEST, *key)).fetchone()
        return Evidence("", 0) if row is None else Evidence(*row)


DURABLE: LiteralString = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)"
)
"""Of the present transaction; what is stronger stays."""

_WARNING = "01000"


class NotReplicatedError(psycopg.OperationalError):
    """COMMIT returned, but the wait for the synchronous standbys was cancelled: replication is in doubt."""


def commit(connection: psycopg.Connection[Any]) -> None:
    """Commit, and verify that the synchronous standbys confirmed it.

    Raises:
        NotReplicatedError: The wait for the standbys was cancelled, by a time-out or an administrator.
        psycopg.Error: The outcome of the COMMIT is in doubt.
    """
    warnings: list[str | None] = []

    def hear(notice: Diagnostic) -> None:
        if notice.sqlstate == _WARNING:
            warnings.append(notice.message_primary)

    connection.add_notice_handler(hear)
    try:
        connection.execute("COMMIT")
    finally:
        connection.remove_notice_handler(hear)
    if warnings:
        raise NotReplicatedError(f"COMMIT was not replicated: {warnings[0]}; bring the synchronous standby back")


def roll_back(connection: psycopg.Connection[Any]) -> None:
    """ROLLBACK, if there is something to roll back and a server that can."""
    if connection.info.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        connection.execute("ROLLBACK")


BATCH = 500
"""Transactions of one statement."""

PATIENCE_SECONDS = 30.0
"""Time limit for retrying a failed batch split in two, in seconds; the rest is UNREACHABLE, and checked again."""

_BEGIN: LiteralString = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {DURABLE}; SET LOCAL lock_timeout = '1500ms'"
"""One message of the simple protocol, and so one round trip."""

_TRY_LOCKS: LiteralString = (
    "SELECT id FROM unnest(%s::uuid[], %s::bigint[]) AS asked (id, number) WHERE pg_try_advisory_xact_lock(number)"
)
_WRITE: LiteralString = "UPDATE {fence} SET written_at = clock_timestamp() WHERE id = 0"

_RETRY_SMALLER = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.OutOfMemory,
    psycopg.errors.QueryCanceled,
    psycopg.errors.SerializationFailure,
    OvertakenError,
)
"""Errors that a smaller batch may avoid: 40P01, 53200, 57014, 40001, and a purge that came in between."""

DiscardLookup = Callable[[Collection[str]], Collection[str]]
"""Return those of some transactions that are in the discard topic now; none if that is unknown."""


class Guard(Protocol):
    """Decide what may be fenced: the interface of the circuit breaker."""

    def admit(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> set[str]:
        """Return the ids that may be fenced; no request has a row, and all advisory locks are held."""


class _Fenced(NamedTuple):
    """Which of some transactions could be fenced.

    Args:
        locked: Ids whose advisory lock and unique key were free.
        admitted: Ids whose lock was free, and which the guard admitted.
    """

    locked: set[str]
    admitted: set[str]


class Fence:
    """Check transactions in one database; without a guard, each may be fenced."""

    def __init__(
        self,
        table: CallbackTable,
        channel: str,
        guard: Guard | None = None,
        in_discard_topic: DiscardLookup | None = None,
    ) -> None:
        self._table = table
        self._channel = channel
        self._guard = guard
        self._in_discard_topic = in_discard_topic
        self._size = BATCH

    def check(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> Answers:
        """Decide what can be decided; return verdict and row by transaction id.

        The connection is in autocommit, to a writable primary: the rollback row proves that it is one. After an error
        of psycopg nothing was decided for the rest.
        """
        answers: Answers = {}
        waiting = [sorted(requests, key=lambda request: request.transaction_id)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while waiting:
            batch = waiting.pop()
            if len(batch) > self._size:
                waiting += _cut(batch, self._size)
                continue
            try:
                answers |= self._check(connection, batch)
            except _RETRY_SMALLER as error:
                self._note_split(error, len(batch))
                if len(batch) == 1 or time.monotonic() > deadline:
                    answers |= _all(batch, Verdict.UNREACHABLE)
                else:
                    waiting += _cut(batch, (len(batch) + 1) // 2)
        below = [one for one in requests if answers[one.transaction_id][0] is Verdict.PURGED]
        if below and self._in_discard_topic is not None:
            answers |= self._fence_discarded(connection, below, self._in_discard_topic)
        if any(verdict is Verdict.COMMITTED for verdict, _ in answers.values()):
            self._write(connection)
        failpoint("checker.decided")
        return answers

    def _note_split(self, error: psycopg.Error, size: int) -> None:
        """Log that a batch is split, and use smaller batches from now on if the server's lock table is full."""
        reason = _reason(error)
        if isinstance(error, psycopg.errors.OutOfMemory):
            self._size = max(1, min(self._size, size) // 2)
            reason += ": each transaction of a batch takes a lock; set max_locks_per_transaction higher in that server"
        log.warning("Batch split after an error", reason=reason, transactions=size, batch=self._size)

    def _check(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> Answers:
        with _transaction(connection):
            mismatched = foreign(batch, self._table.incarnation(connection))
            rows = read_rows(connection, self._table, [request.transaction_id for request in batch])
            known = mismatched | rows.keys()
            fenced = self._fence(connection, [one for one in batch if one.transaction_id not in known])
        ours = [one for one in batch if one.transaction_id not in mismatched]
        return _all(batch, Verdict.MISMATCH) | self._answers(connection, ours, fenced, rows)

    def _fence(
        self, connection: psycopg.Connection[Any], undecided: Sequence[CheckRequest], *, in_discard_topic: bool = False
    ) -> _Fenced:
        """Place rollback rows for transactions whose lock is free, unless the guard withholds them."""
        locked = self._lock(connection, undecided)
        admitted = self._admit(connection, [one for one in undecided if one.transaction_id in locked])
        locked -= place_rollback_rows(
            connection, self._table, self._channel, admitted, in_discard_topic=in_discard_topic
        )
        return _Fenced(locked, {one.transaction_id for one in admitted})

    def _answers(
        self,
        connection: psycopg.Connection[Any],
        requests: Sequence[CheckRequest],
        fenced: _Fenced,
        known: Mapping[str, Row],
    ) -> Answers:
        """Read the rows that are not known, in a statement of its own after COMMIT (R8), and return the answers."""
        failpoint("checker.fenced")
        topic_ids = {one.transaction_id: one.topic_id for one in requests}
        rows = {**known, **read_rows(connection, self._table, [id_ for id_ in topic_ids if id_ not in known])}
        return {
            id_: (_verdict(id_, rows.get(id_), topic_id, fenced), rows.get(id_)) for id_, topic_id in topic_ids.items()
        }

    def _lock(self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> set[str]:
        """Try the advisory locks; the ids whose lock was free: no local transaction of theirs is open."""
        ids = [request.transaction_id for request in batch]
        found = connection.execute(_TRY_LOCKS, (ids, [lock_number(id_) for id_ in ids])).fetchall() if ids else []
        failpoint("checker.locked")
        return {str(id_) for (id_,) in found}

    def _admit(self, connection: psycopg.Connection[Any], free: Sequence[CheckRequest]) -> Sequence[CheckRequest]:
        if self._guard is None or not free:
            return free
        admitted = self._guard.admit(connection, free)
        return [request for request in free if request.transaction_id in admitted]

    def _fence_discarded(
        self, connection: psycopg.Connection[Any], below: Sequence[CheckRequest], in_discard_topic: DiscardLookup
    ) -> Answers:
        """Fence transactions in the discard topic below the watermark: their rows are never purged."""
        answers: Answers = {}
        try:
            found = in_discard_topic([one.transaction_id for one in below])
            chosen = [one for one in below if one.transaction_id in found]
            for start in range(0, len(chosen), self._size):
                answers |= self._fence_discarded_batch(connection, chosen[start : start + self._size], in_discard_topic)
        except (OutboxError, *_RETRY_SMALLER) as error:
            reason = _reason(error) if isinstance(error, psycopg.Error) else str(error)
            log.warning("Transactions below the purge watermark stay undecided for now", reason=reason)
        return answers

    def _fence_discarded_batch(
        self, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest], in_discard_topic: DiscardLookup
    ) -> Answers:
        """Fence transactions that are in the discard topic before and after: one that left it may have lost its row."""
        with _transaction(connection):
            fenced = self._fence(connection, batch, in_discard_topic=True)
            _require_discarded(fenced.admitted, in_discard_topic)
        return self._answers(connection, batch, fenced, {})

    def _write(self, connection: psycopg.Connection[Any]) -> None:
        """Commit a transaction synchronously: once it is acknowledged, all earlier ones are durable, too (R9)."""
        with _transaction(connection):
            connection.execute(self._table.compose(_WRITE))


@contextmanager
def _transaction(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Run the block in a transaction with a durable COMMIT; an error rolls it back."""
    try:
        connection.execute(_BEGIN)
        yield
    except BaseException:
        roll_back(connection)
        raise
    commit(connection)


def _verdict(id_: str, row: Row | None, topic_id: str, fenced: _Fenced) -> Verdict:
    """Return the verdict of a row; without a row and with a free lock, breaker or watermark (R11) blocked the fence."""
    if row is not None:
        return of_row(row, topic_id)
    if id_ not in fenced.locked:
        return Verdict.IN_FLIGHT
    return Verdict.PURGED if id_ in fenced.admitted else Verdict.WITHHELD


def _require_discarded(ids: set[str], in_discard_topic: DiscardLookup) -> None:
    if ids and not ids <= set(in_discard_topic(ids)):
        raise OvertakenError("some of it has left the discard topic meanwhile")


def _reason(error: psycopg.Error) -> str:
    """Without what a DETAIL line may quote."""
    return error.diag.message_primary or str(error) or type(error).__name__


def _all(batch: Sequence[CheckRequest], verdict: Verdict) -> Answers:
    return {request.transaction_id: (verdict, None) for request in batch}


def _cut(batch: list[CheckRequest], size: int) -> list[list[CheckRequest]]:
    """In parts of at most this size, the last one first: the next is taken from the end."""
    return [batch[start : start + size] for start in range(0, len(batch), size)][::-1]
