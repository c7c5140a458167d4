"""The seal: the step between the last statement of a local transaction and its COMMIT.

The seal sends the halves, waits for all acknowledgements, and inserts the row with their offsets. The halves are sent
while the business rows are locked, so their order per key is the order of the database. With eager sending the halves
are sent at `publish()`, and the seal only waits for the missing acknowledgements.

To the checker a transaction that holds its advisory lock is IN_FLIGHT; one that does not is fenced. The INSERT of the
row takes the lock. If the INSERT may come late, the lock is taken before: with eager sending, for more than
`_LOCK_FREE_HALVES` messages, and while acknowledgements are late. Otherwise a half is stored some milliseconds before
the lock is taken, long before the first check.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import LiteralString
from weakref import WeakKeyDictionary

import psycopg

from outbox._failpoints import failpoint
from outbox._half.draft import Draft, refuse
from outbox._half.sender import Sender
from outbox._postgres.callback_table import CallbackRow, CallbackTable, may_be_purged
from outbox._postgres.table_errors import explained
from outbox._publish.acceptance import require_accepted
from outbox._publish.local_connection import LocalConnection, local_connection
from outbox._publish.tracing import with_traces
from outbox._publish.waiting import Budget
from outbox._rules.half_place import HalfPlace
from outbox.errors import PublishFailed, TableError, TransactionFenced, UsageError
from outbox.message import Message
from outbox.protocol.identifiers import lock_number, make_transaction_id
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.positions import Positions
from outbox.recorder import CommitOutcome
from outbox.settings import HalfSettings
from outbox.transaction import Receipt

log = logging.getLogger("outbox")

_NOT_REPLICATED = "01000"
"""SQLSTATE of the notice "canceling wait for synchronous replication": committed, but not replicated (R5)."""

_SYNCHRONOUS = "SET LOCAL synchronous_commit = on"
_MARK = "SELECT set_config('outbox.transaction', %s, true)"
_ASYNCHRONOUS = frozenset({"off", "local"})
_LOCK_FREE_HALVES = 16
"""Up to this many halves are sent before the advisory lock is taken."""

_LATE_SECONDS = 0.25
"""After this time without all acknowledgements the lock is taken; the first check comes after seconds."""

_LEASE: LiteralString = (
    ", set_config('idle_in_transaction_session_timeout', CASE"
    " WHEN current_setting('idle_in_transaction_session_timeout')::interval"
    " BETWEEN interval '1 ms' AND {lease} * interval '1 ms'"
    " THEN current_setting('idle_in_transaction_session_timeout') ELSE {lease}::text END, true)"
)
"""Limits how long a transaction with halves in Kafka may be idle on the server (R7); a shorter limit is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Sealer:
    """Creates the seals of one `Outbox`, one for each local transaction.

    Args:
        incarnations: Last known incarnation of the database behind each connection of a driver, with its server (R10).
    """

    settings: HalfSettings
    sender: Sender
    table: CallbackTable
    incarnations: WeakKeyDictionary[object, tuple[str, object]] = field(default_factory=WeakKeyDictionary)
    two_phases: bool = False

    def connection(self, driver: object) -> LocalConnection:
        return local_connection(driver)

    def start(self, connection: LocalConnection) -> Seal:
        """Create a seal in the connection's transaction, with a new transaction id."""
        id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        draft = Draft(id_)
        return Seal(self, connection, draft)


class Seal:
    """One outbox's participant in one local transaction: its draft, its halves, its row, and its end."""

    def __init__(self, sealer: Sealer, connection: LocalConnection, draft: Draft) -> None:
        self.draft = draft
        self.transaction_id = draft.transaction_id
        self._settings = sealer.settings
        self._sender = sealer.sender
        self._recorder = sealer.sender.recorder
        self._table = sealer.table
        self._connection = connection
        self._incarnations = sealer.incarnations
        self._incarnation: str | None = None
        self._server: object = None
        self._locked = False
        self._place = HalfPlace("", -1, 0)
        self._sending_since = 0.0  # s, monotonic
        self._sent: list[int] = []  # positions of the halves, in the order of their acknowledgements
        self._acks = sealer.sender.acks()
        self._entry: OpEntry | None = None
        self._outcome_without_commit = CommitOutcome.ROLLED_BACK
        self._listens = False
        self._not_replicated = False
        self.has_ended = False
        self._send_failed = False
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self.draft)

    def strike(self, keep: int) -> None:
        """Remove all but the first `keep` messages: their SAVEPOINT was rolled back."""
        self.draft.strike(keep)

    def publish(self, messages: Sequence[Message], *, eager: bool) -> list[Receipt]:
        """Add messages, all or none; eager ones are sent now, never while a SAVEPOINT is open."""
        self._require_own_process()
        require_accepted(self._settings)
        messages = with_traces(messages)
        budget = self._sender.budget(self._connection.waiting)
        planned = self.draft.planned(messages, self._settings.service, self._settings.channel.half_topic)
        for message, half in zip(messages, planned, strict=True):
            refuse(message, half, self._sender, budget)
        receipts = self.draft.add(messages)
        if eager:
            self._send(budget, eager=True)
        self._recorder.messages_published(self._settings.service, len(messages))
        return receipts

    def acknowledged_half(self) -> tuple[int, int]:
        """Return the place of the last eager half, once it is stored (RocketMQ runs the transaction only then)."""
        try:
            return self._place.partition, self._acks.offsets(self._sender.budget(self._connection.waiting))[-1]
        except PublishFailed:
            self._send_failed = True
            raise

    def seal(self, *, marked: bool = False) -> None:
        """Send the unsent halves, wait for all acknowledgements, insert the row.

        Args:
            marked: Whether `begin()` began the transaction, so that its mark must still be set.
        """
        self._require_own_process()
        budget = self._sender.budget(self._connection.waiting)
        self._send(budget)
        offsets = self._acknowledged(budget)
        self._sender.require_same_topic(self._place, offsets)
        self._recorder.halves_acked(self._settings.service, len(offsets), time.monotonic() - self._sending_since)
        failpoint("outbox.half_acked")
        self._entry = self._make_entry(OpKind.COMMIT, self.draft.positions, offsets)
        mark = self._insert(self._entry)
        if marked and mark != self.transaction_id:
            raise UsageError(
                "The transaction was ended inside the block. "
                "Leave COMMIT and ROLLBACK to outbox.transaction(), which sends them at the end of the block."
            )
        self._connection.require_healthy()
        self._connection.listen(self._notice)
        self._listens = True
        failpoint("outbox.sealed")

    def _require_own_process(self) -> None:
        """Refuse a transaction of the parent in a forked child (R46)."""
        if os.getpid() != self._pid:
            raise UsageError(
                "The transaction was begun before a fork. Begin a new one, on a connection of the child process."
            )

    def _send(self, budget: Budget, *, eager: bool = False) -> None:
        if self._send_failed:
            raise PublishFailed("An earlier message of this transaction could not be sent. Roll it back and try again.")
        if not self.draft.has_unsent:
            return
        self._send_failed = True
        self._sender.require_answering()
        self._sender.connect(budget)
        incarnation = self._open(eager=eager)
        if not self._sent:
            self._sending_since = time.monotonic()
        topic, partition = self._settings.channel.half_topic, self._place.partition
        for position, half in self.draft.take_unsent(self._settings.service, incarnation, topic, partition):
            self._sent.append(
                position
            )  # before it is sent, so that a rollback marker covers it even after an interruption
            self._sender.produce_half(half, self._acks, budget)
        self._send_failed = False

    def _acknowledged(self, budget: Budget) -> list[int]:
        """Wait for the offsets of the halves; if they are late, take the lock, so that the checker does not fence."""
        if not self._locked and not self._acks.arrive(budget, _LATE_SECONDS):
            self._lock(eager=False)
        return self._acks.offsets(budget)

    def _open(self, *, eager: bool) -> str:
        """Return the incarnation of the database for the halves (R10); choose their place at the first call."""
        if self._incarnation is None:
            found = self._incarnations.get(self._connection.driver)
            if found is None or eager or len(self.draft) > _LOCK_FREE_HALVES:
                found = self._lock(eager=eager)
            self._place = self._sender.half_place(self.draft.ordering_key, self.transaction_id)
            self._incarnation, self._server = found
        return self._incarnation

    def _lock(self, *, eager: bool) -> tuple[str, object]:
        """Take the advisory lock; return the incarnation of the database, and its server."""
        statement = self._table.open_statement
        if eager:
            statement += _LEASE.format(lease=int(self._settings.eager_idle_timeout_seconds * 1000))
        with explained(self._table.names.schema, self._table.names.meta):
            row = self._connection.execute(statement, (lock_number(self.transaction_id),)).row
        if row is None or row[1] is None:
            raise TableError(f"Table {self._table.names.meta} has no incarnation. Run `outbox table create`.")
        self._locked = True
        found = self._incarnations[self._connection.driver] = str(row[1]), row[2]
        return found

    def _make_entry(self, kind: OpKind, positions: Positions, offsets: list[int]) -> OpEntry:
        place, first, last = self._place, min(offsets), max(offsets)
        return OpEntry(kind, self.transaction_id, place.topic_id, place.partition, positions, first, last)

    def _insert(self, entry: OpEntry) -> str | None:
        """Insert the row, and make COMMIT wait for the disk (R7); return the mark of the transaction."""
        row = CallbackRow(
            entry.transaction_id,
            self._settings.service,
            self._settings.channel.name,
            entry.topic_id,
            entry.partition,
            entry.first_offset,
            entry.last_offset,
            entry.positions,
        )
        parameters = (*row.values(), lock_number(entry.transaction_id))
        try:
            with explained(self._table.names.schema, self._table.names.transaction):
                returned = self._connection.execute(self._table.insert_statement, parameters).row
        except psycopg.errors.UniqueViolation as error:
            self._outcome_without_commit = CommitOutcome.FENCED
            raise TransactionFenced(
                f"The checker decided ROLLBACK for transaction {entry.transaction_id} before it committed. "
                "All of it is rolled back. Try again."
            ) from error
        mark, synchronous_commit, server = returned or (None, None, None)
        if server != self._server:
            self._require_incarnation()
        if synchronous_commit in _ASYNCHRONOUS:
            self._connection.execute(_SYNCHRONOUS)
        return None if mark is None else str(mark)

    def _require_incarnation(self) -> None:
        """Check that the row is in the database that its halves name, where the checker will look for it."""
        incarnation, _ = self._lock(eager=False)
        if incarnation != self._incarnation:
            raise TableError(
                f"The incarnation in table {self._table.names.meta} has changed since the connection last published; "
                "the database may have been restored. All of the transaction is rolled back. Try again."
            )

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate == _NOT_REPLICATED:
            self._not_replicated = True

    def _stop_listening(self) -> None:
        if self._listens:
            self._connection.unlisten(self._notice)
            self._listens = False

    def has_row(self, *, presumed: bool) -> bool | None:
        """Return whether the row exists, on an idle connection, when SQLAlchemy did not report that COMMIT returned.

        None if Postgres does not answer, or if the row may have been purged, so that its absence proves nothing (R11).

        Args:
            presumed: Ignored, because there is a row to look up.
        """
        del presumed
        try:
            found = self._connection.execute(self._table.find_statement, (self.transaction_id,)).row
        except psycopg.Error:
            return None
        finally:
            self._connection.roll_back()
        return _found(self.transaction_id, found)

    def committed(self) -> bool:
        """Mark it as committed; send the op marker, and return True, unless the durability is in doubt (R5)."""
        if self._not_replicated:
            log.warning("COMMIT of transaction %s was not replicated, the checker will decide", self.transaction_id)
            self.unknown()
            return False
        self._end(CommitOutcome.COMMITTED)
        if self._entry is not None and os.getpid() == self._pid:
            failpoint("outbox.committed")
            self._sender.send_op_soon(self._entry)
        return True

    def rolled_back(self) -> None:
        """Mark the transaction as rolled back: COMMIT was not sent, or it definitely failed (R6).

        When all acknowledgements are there, a rollback marker is sent, so that no check is needed.
        """
        self._end(self._outcome_without_commit)
        if self._sent and os.getpid() == self._pid:  # in a forked child: the parent may still commit (R46)
            self._acks.when_all(self._send_rollback)

    def _send_rollback(self) -> None:
        offsets = self._acks.acknowledged()
        # Sending the last one may have failed.
        found = {position: offset for position, offset in zip(self._sent, offsets, strict=False) if offset >= 0}
        if found:
            positions = Positions.of(sorted(found))
            self._sender.send_op_soon(self._make_entry(OpKind.ROLLBACK, positions, list(found.values())))

    def unknown(self) -> None:
        """Mark the transaction as in doubt. No marker is sent, which is always safe: the checker decides (R6)."""
        self._end(CommitOutcome.UNKNOWN)

    def _end(self, outcome: CommitOutcome) -> None:
        self._stop_listening()
        if self.draft or self._sent:
            self._recorder.transaction_ended(self._settings.service, outcome)
        self.has_ended = True


def _found(transaction_id: str, answer: tuple[object, ...] | None) -> bool | None:
    exists, purged_until = answer or (False, None)
    if exists:
        return True
    return None if may_be_purged(transaction_id, None if purged_until is None else int(str(purged_until))) else False


def begin(connection: LocalConnection, transaction_id: str) -> None:
    """Begin a transaction with the connection's own attributes, and set a mark by which the seal recognizes it."""
    connection.execute(_MARK, (transaction_id,))
