"""The part that an in-memory outbox takes in a local transaction: what `outbox._publish.seal` is to the real one."""

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
from outbox._receipts.receipt import Receipt
from outbox.errors import CommitOutcomeUnknown, OutboxError, PublishFailed, TransactionFenced, UsageError
from outbox.message import Message
from outbox.protocol.identifiers import make_transaction_id
from outbox.recorder import CommitOutcome
from outbox.settings import Settings
from outbox.testing._memory.any_connection import AnyConnection, commit_now
from outbox.testing._memory.sender import MemorySender
from outbox.testing._memory.state import CommitFailure, Memory
from outbox.testing.published import PublishedMessage

_MARK = sql.SQL("SELECT current_setting('outbox.transaction', true)")


class MemoryDraft(Draft):
    """A draft that shows what is in it."""

    def messages(self) -> list[PublishedMessage]:
        """The messages that count so far."""
        return [PublishedMessage.of(message, self.transaction_id, position) for position, message in self._messages]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryStarter:
    """Starts the part that one in-memory outbox takes in local transactions.

    Args:
        settings: Its settings.
        sender: Knows the topics.
        memory: Takes what commits.
    """

    settings: Settings
    sender: MemorySender
    memory: Memory

    def connection(self, driver: object) -> LocalConnection:
        """The connection of a driver: psycopg's as the real outbox has it, that of any other as SQLAlchemy sees it."""
        if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
            return local_connection(driver)
        return AnyConnection(driver)

    def start(self, connection: LocalConnection) -> MemoryPart:
        """A new part in the connection's transaction, with a fresh transaction id."""
        id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        return MemoryPart(self, connection, MemoryDraft(id_, self.memory))


class MemoryPart:
    """The part that one in-memory outbox takes in one local transaction.

    Args:
        starter: Of the outbox.
        connection: On which COMMIT will run.
        draft: What is published.
    """

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

    def publish(self, message: Message, *, early: bool) -> Receipt:
        """Add a message.

        Args:
            message: The message.
            early: Makes no difference here.

        Raises:
            MessageRefused: It cannot be published.
            TransactionsRejected: The outbox was told to reject transactions.
            PublishFailed: The outbox was told to let it fail.
            UsageError: The outbox is closed.
        """
        del early
        message = with_trace(message)
        planned = self.draft.planned(message, self._group)
        refuse(message, planned, self._sender, self._sender.budget(self._connection.waiting))
        if self._memory.publication_fails():
            raise PublishFailed("Kafka does not answer; roll the local transaction back and try again")
        receipt = self.draft.add(message)
        self._sender.recorder.messages_published(self._group, 1)
        return receipt

    def acknowledged_half(self) -> tuple[int, int]:
        """Partition 0, and the message's position for an offset: no half is stored anywhere."""
        return 0, len(self.draft) - 1

    def seal(self, *, marked: bool = False) -> None:
        """Fail if the outbox was told so.

        Args:
            marked: Whether the transaction was begun by `begin()`, and nothing may have ended it since.

        Raises:
            PublishFailed: It was told so.
            TransactionFenced: It was told so, or somebody asked for the outcome of this transaction.
            CommitOutcomeUnknown: It was told so.
            UsageError: The transaction failed or ended meanwhile.
        """
        if marked and self._connection.execute(_MARK).row != (self._id,):
            raise UsageError("the transaction was ended inside the block: outbox.transaction() owns BEGIN and COMMIT")
        failure = self._memory.commit_failure()
        if failure is None and self._memory.is_fenced(self._id):
            failure = CommitFailure.FENCED
        if failure is not None:
            raise self._fail(failure)
        self._sender.recorder.halves_acked(self._group, len(self.draft), 0.0)

    def _fail(self, failure: CommitFailure) -> OutboxError:
        if failure is CommitFailure.PUBLISH_FAILED:
            return PublishFailed("Kafka did not acknowledge the halves; the local transaction is rolled back")
        if failure is CommitFailure.FENCED:
            self._outcome_without_commit = CommitOutcome.FENCED
            return TransactionFenced(
                f"transaction {self._id} was decided ROLLBACK by the checker before it committed; "
                "all of it is rolled back, and it can be tried again"
            )
        self._lost = failure
        if failure is CommitFailure.LOST_AND_COMMITTED:
            commit_now(self._connection)
        return CommitOutcomeUnknown(
            self._id, f"COMMIT of transaction {self._id} was sent and no reply came: the checker will decide"
        )

    def has_row(self, *, presumed: bool) -> bool | None:
        """Whether the transaction committed, when nobody said that COMMIT was: not if it is still open.

        Args:
            presumed: Whether it did as far as SQLAlchemy knows.
        """
        return presumed and not (isinstance(self._connection, AnyConnection) and self._connection.is_open)

    def committed(self) -> bool:
        """COMMIT was seen to succeed.

        Returns:
            Whether it is as durable as it was asked to be: always.
        """
        self._end(CommitOutcome.COMMITTED)
        self._decided_commit()
        return True

    def rolled_back(self, reason: str) -> None:
        """Nothing was, or will be, committed, as far as whoever calls this knows.

        Args:
            reason: Half a sentence for people.
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
        """Nobody knows how it ended, and here is no checker."""
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
