"""The seal: what happens between the last statement of a local transaction and its COMMIT.

The halves with all their acknowledgements, then the row, which holds their offsets. As the halves are sent while the
business rows are locked, their order per key is the database's. In eager mode the halves come earlier, at `publish()`,
and the seal only waits for what is still missing.

Who holds the transaction's advisory lock is IN_FLIGHT to the checker, who does not hold it is fenced. The row's INSERT
takes it. It is taken before the halves where the row may be long in coming: in eager mode, for more than a few
messages, and while acknowledgements are late. Otherwise a half is a moment older than the lock: nobody asks so soon.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from typing import LiteralString
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql

from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackRow, CallbackTable
from outbox._postgres.purge_watermark import may_be_purged
from outbox._postgres.table_errors import explained
from outbox._publish.draft import Draft
from outbox._publish.local_connection import LocalConnection, local_connection
from outbox._publish.sender import Sender
from outbox._publish.tracing import with_trace
from outbox._publish.validation import refuse
from outbox._publish.waiting import Budget
from outbox._receipts.receipt import Receipt
from outbox._rules.half_place import HalfPlace
from outbox.errors import CallbackTableError, PublishFailed, TransactionFenced, UsageError
from outbox.message import Message
from outbox.protocol.identifiers import lock_number, make_transaction_id
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.positions import Positions
from outbox.recorder import CommitOutcome
from outbox.settings import Settings

log = logging.getLogger("outbox")

_NOT_REPLICATED = "01000"
"""SQLSTATE of the notice "canceling wait for synchronous replication": visible, but not as durable as asked (R5)."""

_SYNCHRONOUS = sql.SQL("SET LOCAL synchronous_commit = on")
_MARK = sql.SQL("SELECT set_config('outbox.transaction', %s, true)")
_ASYNCHRONOUS = frozenset({"off", "local"})
_FEW = 16
"""So many halves are on their way in no time."""

_LATE_SECONDS = 0.25
"""Acknowledgements take so long only when something is wrong; the first check comes after seconds."""

_LEASE: LiteralString = (
    ", set_config('idle_in_transaction_session_timeout', CASE"
    " WHEN current_setting('idle_in_transaction_session_timeout')::interval"
    " BETWEEN interval '1 ms' AND {lease} * interval '1 ms'"
    " THEN current_setting('idle_in_transaction_session_timeout') ELSE {lease}::text END, true)"
)
"""A transaction with halves in Kafka does not stay open for ever on the server (R7); a shorter limit stays."""


@dataclass(frozen=True, slots=True, eq=False)
class Sealer:
    """Starts the part that one `Outbox` takes in local transactions.

    Args:
        settings: Its settings.
        sender: Its connection to Kafka.
        table: Its callback table.
        incarnations: Of the database behind each connection of a driver, as they were seen last (R10).
    """

    settings: Settings
    sender: Sender
    table: CallbackTable
    incarnations: WeakKeyDictionary[object, str] = field(default_factory=WeakKeyDictionary)

    def connection(self, driver: object) -> LocalConnection:
        """The connection of a driver, as the seal needs it.

        Raises:
            UsageError: It is not psycopg's.
        """
        return local_connection(driver)

    def start(self, connection: LocalConnection) -> Seal:
        """A new part in the connection's transaction, with a fresh transaction id."""
        id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        draft = Draft(id_, self.sender.visibility)
        return Seal(self, connection, draft)


class Seal:
    """The part that one outbox takes in one local transaction: its draft, its halves, its row, and its end.

    Args:
        sealer: Of the outbox.
        connection: On which COMMIT will run.
        draft: What is published.
    """

    def __init__(self, sealer: Sealer, connection: LocalConnection, draft: Draft) -> None:
        self.draft = draft
        self._settings = sealer.settings
        self._sender = sealer.sender
        self._recorder = sealer.sender.recorder
        self._table = sealer.table
        self._connection = connection
        self._incarnations = sealer.incarnations
        self._incarnation: str | None = None
        self._locked = False
        self._place = HalfPlace("", -1, 0)
        self._sending_since = 0.0  # s, monotonic
        self._sent: list[int] = []  # positions of the halves, in the order of their acknowledgements
        self._acks = sealer.sender.acks()
        self._entry: OpEntry | None = None
        self._outcome_without_commit = CommitOutcome.ROLLED_BACK
        self._listens = False
        self._doubtful = False
        self._failed = False
        self._pid = os.getpid()

    def publish(self, message: Message, *, early: bool) -> Receipt:
        """Add a message.

        Args:
            message: The message.
            early: Whether its half goes out now (eager mode); never while a SAVEPOINT is open.

        Raises:
            MessageRefused: It cannot be published; nothing was written.
            ConfigurationError: Channel or tables are not what the library needs.
            PublishFailed: Kafka does not answer.
            psycopg.Error: The lock could not be taken.
        """
        self._require_own_process()
        message = with_trace(message)
        budget = self._sender.budget(self._connection.waiting)
        refuse(message, self.draft.planned(message, self._settings.group), self._sender, budget)
        receipt = self.draft.add(message)
        if early:
            self._send(budget, eager=True)
        self._recorder.messages_published(self._settings.group, 1)
        return receipt

    def acknowledged_half(self) -> tuple[int, int]:
        """Wait until the early half that was sent last is stored (RocketMQ runs the local transaction only then).

        Returns:
            Half partition and offset.

        Raises:
            PublishFailed: It was not acknowledged.
        """
        try:
            return self._place.partition, self._acks.offsets(self._sender.budget(self._connection.waiting))[-1]
        except PublishFailed:
            self._failed = True
            raise

    def seal(self, *, marked: bool = False) -> None:
        """Send what is not sent, wait for all acknowledgements, insert the row.

        Args:
            marked: Whether the transaction was begun by `begin()`, and nothing may have ended it since.

        Raises:
            PublishFailed: The halves were not acknowledged.
            TransactionFenced: The checker was first.
            CallbackTableError: The tables are missing.
            UsageError: The transaction failed or ended meanwhile.
            psycopg.Error: Postgres refuses.
        """
        self._require_own_process()
        budget = self._sender.budget(self._connection.waiting)
        self._send(budget)
        offsets = self._acknowledged(budget)
        self._sender.require_same_topic(self._place, offsets)
        self._recorder.halves_acked(self._settings.group, len(offsets), time.monotonic() - self._sending_since)
        failpoint("outbox.half_acked")
        self._entry = self._make_entry(OpKind.COMMIT, self.draft.positions, offsets)
        mark = self._insert(self._entry)
        if marked and mark != self.draft.transaction_id:
            raise UsageError("the transaction was ended inside the block: outbox.transaction() owns BEGIN and COMMIT")
        self._connection.require_healthy()
        self._connection.listen(self._notice)
        self._listens = True
        failpoint("outbox.sealed")

    def _require_own_process(self) -> None:
        """Refuse to go on with a transaction of the parent in a forked child (R46)."""
        if os.getpid() != self._pid:
            raise UsageError(
                "The transaction was begun before a fork. Begin a new one, on a connection of the child process."
            )

    def _send(self, budget: Budget, *, eager: bool = False) -> None:
        if self._failed:
            raise PublishFailed("an earlier message of this transaction could not be sent: roll it back and try again")
        if not self.draft.has_unsent:
            return
        self._failed = True
        self._sender.require_answering()
        self._sender.connect(budget)
        incarnation = self._open(eager=eager)
        if not self._sent:
            self._sending_since = time.monotonic()
        for position, half in self.draft.take_unsent(self._settings.group, incarnation):
            self._sent.append(position)  # before it is on its way: whatever interrupts us, its marker names it
            self._sender.produce_half(self._place.partition, half, self._acks, budget)
        self._failed = False

    def _acknowledged(self, budget: Budget) -> list[int]:
        """The offsets of the halves; while they are late, the lock says that the transaction lives."""
        if not self._locked and not self._acks.arrive(budget, _LATE_SECONDS):
            self._lock(eager=False)
        return self._acks.offsets(budget)

    def _open(self, *, eager: bool) -> str:
        """Learn, once, what the halves must say: the incarnation of the database (R10)."""
        if self._incarnation is None:
            incarnation = self._incarnations.get(self._connection.driver)
            if incarnation is None or eager or len(self.draft) > _FEW:
                incarnation = self._lock(eager=eager)
            self._place = self._sender.half_place(self.draft.ordering_key, self.draft.transaction_id)
            self._incarnation = incarnation
        return self._incarnation

    def _lock(self, *, eager: bool) -> str:
        """Take the lock, and with it a look at the incarnation of the database."""
        statement = self._table.open_statement
        if eager:
            lease = sql.Literal(int(self._settings.eager_idle_timeout * 1000))
            statement += sql.SQL(_LEASE).format(lease=lease)
        with explained(self._table.names.schema, self._table.names.meta):
            row = self._connection.execute(statement, (lock_number(self.draft.transaction_id),)).row
        if row is None or row[1] is None:
            raise CallbackTableError(f"table {self._table.names.meta} has no incarnation: run `outbox table create`")
        self._locked = True
        self._incarnations[self._connection.driver] = str(row[1])
        return str(row[1])

    def _make_entry(self, kind: OpKind, positions: Positions, offsets: list[int]) -> OpEntry:
        place, first, last = self._place, min(offsets), max(offsets)
        return OpEntry(kind, self.draft.transaction_id, place.topic_id, place.partition, positions, first, last)

    def _insert(self, entry: OpEntry) -> str | None:
        """Insert the row, and let COMMIT wait for the disk (R7); the mark of the transaction in which it stands."""
        row = CallbackRow(
            entry.transaction_id,
            self._settings.group,
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
                f"transaction {entry.transaction_id} was decided ROLLBACK by the checker before it committed; "
                "all of it is rolled back, and it can be tried again"
            ) from error
        mark, synchronous_commit, incarnation = returned or (None, None, None)
        self._require_incarnation(incarnation)
        if synchronous_commit in _ASYNCHRONOUS:
            self._connection.execute(_SYNCHRONOUS)
        return None if mark is None else str(mark)

    def _require_incarnation(self, found: object) -> None:
        """The row must lie where its halves say, or the checker would never find it."""
        if found != self._incarnation:
            self._incarnations.pop(self._connection.driver, None)
            raise CallbackTableError(
                f"table {self._table.names.meta} says that this is not the database that it was when the connection "
                "published before: was it restored? All of the transaction is rolled back, and it can be tried again"
            )

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate == _NOT_REPLICATED:
            self._doubtful = True

    def _stop_listening(self) -> None:
        if self._listens:
            self._connection.unlisten(self._notice)
            self._listens = False

    def has_row(self, *, presumed: bool) -> bool | None:
        """Whether the row is there, on an idle connection: for a first sight at which nobody said that COMMIT was.

        None if Postgres does not answer, or if the row may have been purged: its absence says nothing then (R11).

        Args:
            presumed: Nothing is presumed where there is a row to look for.
        """
        del presumed
        try:
            found = self._connection.execute(self._table.find_statement, (self.draft.transaction_id,)).row
        except psycopg.Error:
            return None
        finally:
            self._connection.roll_back()
        return _found(self.draft.transaction_id, found)

    def committed(self) -> bool:
        """COMMIT was seen to succeed: send the op marker, unless the durability is in doubt (R5).

        Returns:
            Whether the marker was sent.
        """
        if self._doubtful:
            log.warning(
                "COMMIT of transaction %s was not replicated, the checker will decide", self.draft.transaction_id
            )
            self.unknown()
            return False
        self._end(CommitOutcome.COMMITTED)
        self.draft.end.committed()
        if self._entry is not None and os.getpid() == self._pid:
            failpoint("outbox.committed")
            self._sender.send_op(self._entry, connect=False)
        return True

    def rolled_back(self, reason: str) -> None:
        """The row can never become visible: COMMIT was not sent, or it definitely failed (R6).

        Once all acknowledgements are in, a rollback marker saves the checker the work.

        Args:
            reason: Half a sentence for people.
        """
        self._end(self._outcome_without_commit)
        self.draft.end.rolled_back(reason)
        if self._sent and os.getpid() == self._pid:  # in a forked child the parent may yet commit (R46)
            self._acks.when_all(self._send_rollback)

    def _send_rollback(self) -> None:
        found = {
            position: offset
            for position, offset in zip(self._sent, self._acks.acknowledged(), strict=False)  # the last may have failed
            if offset >= 0
        }
        if found:
            positions = Positions.of(sorted(found))
            self._sender.send_op(self._make_entry(OpKind.ROLLBACK, positions, list(found.values())), connect=False)

    def unknown(self) -> None:
        """Nobody knows how it ended. Silence is always safe: the checker decides (R6)."""
        self._end(CommitOutcome.UNKNOWN)
        self.draft.end.unknown()

    def _end(self, outcome: CommitOutcome) -> None:
        self._stop_listening()
        if self.draft or self._sent:
            self._recorder.transaction_ended(self._settings.group, outcome)


def _found(transaction_id: str, answer: tuple[object, ...] | None) -> bool | None:
    is_there, purged_until = answer or (False, None)
    if is_there:
        return True
    return None if may_be_purged(transaction_id, None if purged_until is None else int(str(purged_until))) else False


def begin(connection: LocalConnection, transaction_id: str) -> None:
    """Begin a transaction, as the connection's own attributes say, and mark it: the seal will know it again."""
    connection.execute(_MARK, (transaction_id,))
