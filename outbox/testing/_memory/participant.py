"""The participant of an in-memory outbox in a local transaction, in place of `outbox._publish.seal`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psycopg
from psycopg import sql

from outbox._publish.draft import Draft
from outbox._publish.local_connection import LocalConnection, local_connection
from outbox._publish.tracing import with_trace
from outbox._publish.validation import refuse
from outbox._receipts import Receipt
from outbox.errors import CommitOutcomeUnknown, OutboxError, PublishFailed, TransactionFenced, UsageError
from outbox.message import Message
from outbox.protocol.identifiers import make_transaction_id, table_transaction_id
from outbox.recorder import CommitOutcome
from outbox.settings import Settings
from outbox.testing._memory.any_connection import AnyConnection, commit_now
from outbox.testing._memory.sender import MemorySender
from outbox.testing._memory.state import CommitFailure, Memory
from outbox.testing.published import PublishedMessage

_MARK = sql.SQL("SELECT current_setting('outbox.transaction', true)")


class MemoryDraft(Draft):
    """A draft with readable messages."""

    def messages(self) -> list[PublishedMessage]:
        """Return the messages, without removed ones."""
        return [PublishedMessage.of(message, *self._place(position)) for position, message in self._messages]

    def _place(self, position: int) -> tuple[str, int]:
        return self.transaction_id, position


class TableMemoryDraft(MemoryDraft):
    """A draft of table mode with readable messages, each with the id of a row."""

    def __init__(self, transaction_id: str, memory: Memory) -> None:
        super().__init__(transaction_id)
        self._memory = memory
        self._rows: dict[int, int] = {}

    def add(self, message: Message) -> Receipt:
        """Add a message; as `Draft.add()`."""
        receipt = super().add(message)
        _, (row,) = self._memory.row_ids(1)
        self._rows[receipt.position] = row
        return Receipt(self.transaction_id, row, message.topic, self.end)

    def _place(self, position: int) -> tuple[str, int]:
        return self.transaction_id, self._rows[position]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryStarter:
    """Creates the participants of one in-memory outbox in local transactions."""

    settings: Settings
    sender: MemorySender
    memory: Memory

    def connection(self, driver: object) -> LocalConnection:
        """Wrap a driver's connection: psycopg's as for a real outbox, any other as `AnyConnection`."""
        if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
            return local_connection(driver)
        return AnyConnection(driver)

    def start(self, connection: LocalConnection) -> MemoryPart:
        """Create a participant in the connection's transaction, with a new transaction id."""
        if self.settings.mode == "table":
            xid, _ = self.memory.row_ids(1)
            id_ = table_transaction_id(xid, time.time_ns() // 1_000)
            return MemoryPart(self, connection, TableMemoryDraft(id_, self.memory))
        id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        return MemoryPart(self, connection, MemoryDraft(id_))


class MemoryPart:
    """An in-memory outbox's participant in one local transaction."""

    writes_rows = False

    def __init__(self, starter: MemoryStarter, connection: LocalConnection, draft: MemoryDraft) -> None:
        self.draft: Draft = draft
        self.messages = draft.messages
        self._id = draft.transaction_id
        self._group = starter.settings.group
        self._sender = starter.sender
        self._memory = starter.memory
        self._connection = connection
        self._outcome_without_commit = CommitOutcome.ROLLED_BACK
        self._lost: CommitFailure | None = None
        self._memory.opened(self._id, self)

    def publish(self, message: Message, *, eager: bool) -> Receipt:
        """Add a message.

        Args:
            eager: Ignored.
        """
        del eager
        message = with_trace(message)
        planned = self.draft.planned(message, self._group, self._sender.channel_names.half_topic)
        refuse(message, planned, self._sender, self._sender.budget(self._connection.waiting))
        if self._memory.publication_fails():
            raise PublishFailed("Kafka does not answer. Roll the local transaction back and try again.")
        receipt = self.draft.add(message)
        self._sender.recorder.messages_published(self._group, 1)
        return receipt

    def acknowledged_half(self) -> tuple[int, int]:
        """Return partition 0, and the message's position as its offset: no half is stored."""
        return 0, len(self.draft) - 1

    def seal(self, *, marked: bool = False) -> None:
        """Raise the failure that the test requested, if any.

        Args:
            marked: Whether `begin()` began the transaction, so that its mark must still be set.
        """
        if marked and self._connection.execute(_MARK).row != (self._id,):
            raise UsageError(
                "The transaction was ended inside the block. "
                "Leave COMMIT and ROLLBACK to outbox.transaction(), which sends them at the end of the block."
            )
        failure = self._memory.commit_failure()
        if failure is None and self._memory.is_fenced(self._id):
            failure = CommitFailure.FENCED
        if failure is not None:
            raise self._fail(failure)
        self._sender.recorder.halves_acked(self._group, len(self.draft), 0.0)

    def _fail(self, failure: CommitFailure) -> OutboxError:
        if failure is CommitFailure.PUBLISH_FAILED:
            return PublishFailed(
                "Kafka did not acknowledge the halves. The local transaction is rolled back. Try again."
            )
        if failure is CommitFailure.FENCED:
            self._outcome_without_commit = CommitOutcome.FENCED
            return TransactionFenced(
                f"The checker decided ROLLBACK for transaction {self._id} before it committed. "
                "All of it is rolled back. Try again."
            )
        self._lost = failure
        if failure is CommitFailure.LOST_AND_COMMITTED:
            commit_now(self._connection)
        return CommitOutcomeUnknown(
            self._id,
            f"COMMIT of transaction {self._id} was sent and no reply came. The checker will decide; "
            "outcome() returns the result.",
        )

    def has_row(self, *, presumed: bool) -> bool | None:
        """Return whether the transaction committed, when SQLAlchemy did not report that; False if it is still open.

        Args:
            presumed: The answer for a transaction that is not open.
        """
        return presumed and not (isinstance(self._connection, AnyConnection) and self._connection.is_open)

    def committed(self) -> bool:
        """Mark the transaction as committed.

        Returns:
            Always True: the commit is as durable as configured.
        """
        self._end(CommitOutcome.COMMITTED)
        self._decided_commit()
        return True

    def rolled_back(self, reason: str) -> None:
        """Mark the transaction as rolled back, or apply the requested loss of COMMIT's reply.

        Args:
            reason: A clause for error messages.
        """
        if self._lost is None:
            self._end(self._outcome_without_commit)
            self._decided_rollback(reason)
            return
        self._end(CommitOutcome.UNKNOWN)
        self.draft.end.unknown()
        if self._lost is CommitFailure.LOST_AND_COMMITTED:
            self._decided_commit()
        else:
            self._decided_rollback("the checker decided ROLLBACK")

    def unknown(self) -> None:
        """Mark the transaction as in doubt; there is no checker to decide."""
        self._end(CommitOutcome.UNKNOWN)
        self.draft.end.unknown()
        self._memory.lost(self._id)

    def _decided_commit(self) -> None:
        self._memory.ended(self._id, self.messages())
        self.draft.end.committed()

    def _decided_rollback(self, reason: str) -> None:
        self._memory.ended(self._id, None)
        self.draft.end.rolled_back(reason)

    def _end(self, outcome: CommitOutcome) -> None:
        if self.draft:
            self._sender.recorder.transaction_ended(self._group, outcome)
