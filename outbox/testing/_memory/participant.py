"""What an in-memory outbox has in a local transaction: rows, or halves; and its sender, which has no connection."""

from __future__ import annotations

import inspect
import os
import sqlite3
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from sqlalchemy.util import await_only

from outbox._half.draft import Draft, refuse, why_not_for
from outbox._half.sender import Sender
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.topic_contract import ENVELOPE_BYTES
from outbox._publish.acceptance import refuse_internal, require_accepted
from outbox._publish.local_connection import LocalConnection, NoticeHandler, Result, Statement, local_connection
from outbox._publish.tracing import with_traces
from outbox._publish.waiting import BLOCKING, Budget, Waiting
from outbox._rules.topic_description import TopicDescription
from outbox._table.table_publisher import why_not
from outbox.errors import (
    CommitOutcomeUnknown,
    MessageRefused,
    OutboxError,
    PublishFailed,
    TransactionFenced,
    UsageError,
)
from outbox.message import Message
from outbox.protocol.identifiers import make_transaction_id, table_transaction_id
from outbox.protocol.names import sibling_topic
from outbox.recorder import CommitOutcome, Recorder
from outbox.settings import HalfSettings, Settings
from outbox.testing._memory.state import CommitFailure, Memory, PublishedMessage
from outbox.transaction import Receipt

MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's own default for `max.message.bytes`."""

_ID = str(uuid.UUID(int=0))
_ANY_PARTITION_COUNT = 2**31 - 1

Topics = Mapping[str, int] | Collection[str]


class DeclaredTopics:
    """The topics that exist for an outbox in memory.

    Args:
        topics: Their names, or the number of partitions of each; None: any topic with any partition exists.
    """

    def __init__(self, topics: Topics | None) -> None:
        self._partitions = topics if topics is None or isinstance(topics, Mapping) else dict.fromkeys(topics, 1)

    def topic(self, name: str) -> TopicDescription | None:
        """Return the description of a topic; None if topics are declared and this one is not."""
        declared = self._partitions
        if declared is None:
            return _topic(name, _ANY_PARTITION_COUNT)
        if name not in declared:
            return None
        return replace(_topic(name, declared[name]), of_channel=sibling_topic(name) in declared)


class MemorySender(Sender):
    """A sender with declared topics that refuses to connect."""

    def __init__(self, settings: HalfSettings, recorder: Recorder | None, topics: DeclaredTopics) -> None:
        super().__init__(settings, recorder)
        self._declared = topics

    @property
    def channel(self) -> ChannelDescription:
        """The channel with the settings of `outbox channel create`."""
        names = self._settings.channel
        self.require_open()
        half, op, verdict = (_topic(name, 1) for name in (names.half_topic, names.op_topic, names.verdict_topic))
        check, discard = (_topic(name, 1, ENVELOPE_BYTES) for name in (names.check_topic, names.discard_topic))
        return ChannelDescription(names, half, op, verdict, check, discard, 1)

    def real_topic(self, name: str, budget: Budget) -> TopicDescription | None:
        del budget
        self.require_open()
        return self._declared.topic(name)

    def real_topic_now(self, name: str, budget: Budget) -> TopicDescription | None:
        """Return the same as `real_topic()`: declared topics do not change."""
        return self.real_topic(name, budget)

    def ping(self, waiting: Waiting = BLOCKING) -> None:
        """Check only that the outbox is open."""
        del waiting
        self.require_open()

    def _start(self) -> None:
        raise UsageError(
            "An in-memory outbox has no Kafka. With TransactionalProducer, pass session= and serve_checks=False."
        )


def _topic(name: str, partitions: int, max_message_bytes: int = MAX_MESSAGE_BYTES) -> TopicDescription:
    return TopicDescription(name, _ID, partitions, 1, {"max.message.bytes": str(max_message_bytes)})


class AnyConnection(LocalConnection):
    """A connection of any driver that SQLAlchemy supports, sync or async.

    SQLAlchemy's events report the state of its transaction. Drivers report less: sqlite3 reports no transaction until
    the first change of a row.
    """

    waiting = BLOCKING

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._closed = False

    @property
    def driver(self) -> object:
        return self._driver

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def status(self) -> TransactionStatus:
        """Always IDLE: SQLAlchemy's events report the state."""
        return TransactionStatus.IDLE

    @property
    def is_open(self) -> bool:
        """Whether the connection is certainly in a transaction.

        Only sqlite3 in its default mode can report that. With a BEGIN of the application, which SQLAlchemy's manual
        recommends for SAVEPOINTs, and in sqlite3's newer autocommit mode, the next transaction may have begun.
        """
        driver = self._driver
        return (
            isinstance(driver, sqlite3.Connection)
            and driver.in_transaction
            and driver.isolation_level is not None
            and getattr(driver, "autocommit", None) is not False
        )

    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Result:
        del statement, parameters
        raise UsageError(
            f"The library runs no statements on a connection of {type(self._driver).__module__}. Use psycopg 3."
        )

    def commit_definitely_failed(self, error: BaseException) -> bool:
        """Return whether COMMIT failed for certain: no reply is lost here, so each error is an answer."""
        return isinstance(error, Exception)

    def commit(self) -> None:
        self._call("commit")

    def rollback(self) -> None:
        self._call("rollback")

    def close(self) -> None:
        self._closed = True
        self._call("close")

    def _call(self, method: str) -> None:
        result = getattr(self._driver, method)()
        if inspect.isawaitable(result):
            await_only(result)

    def listen(self, handler: NoticeHandler) -> None:
        """Do nothing: other drivers provide no notices."""

    def unlisten(self, handler: NoticeHandler) -> None:
        """Do nothing: other drivers provide no notices."""

    def autocommit(self, *, on: bool) -> AbstractContextManager[None]:
        """Leave the mode unchanged."""
        del on
        return nullcontext()


def commit_now(connection: LocalConnection) -> None:
    """Send COMMIT without SQLAlchemy's events, to simulate that its reply is lost."""
    if isinstance(connection, AnyConnection):
        connection.commit()
    else:
        connection.execute(sql.SQL("COMMIT"))


_MARK = sql.SQL("SELECT current_setting('outbox.transaction', true)")


def memory_connection(driver: object) -> LocalConnection:
    """Wrap a driver's connection: psycopg's as for a real outbox, any other as `AnyConnection`."""
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return local_connection(driver)
    return AnyConnection(driver)


class MemoryParticipant(ABC):
    """An in-memory outbox's participant in one local transaction."""

    def __init__(
        self, transaction_id: str, service: str, memory: Memory, recorder: Recorder, connection: LocalConnection
    ) -> None:
        self.transaction_id = transaction_id
        self._service = service
        self._memory = memory
        self._recorder = recorder
        self._connection = connection
        self.has_ended = False
        memory.opened(transaction_id, self)

    @abstractmethod
    def messages(self) -> list[PublishedMessage]:
        """Return the messages, without removed ones."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of messages, without removed ones."""

    def seal(self, *, marked: bool = False) -> None:
        """Refuse a transaction that was ended inside the block.

        Args:
            marked: Whether `begin()` began the transaction, so that its mark must still be set.
        """
        if marked and self._connection.execute(_MARK).row != (self.transaction_id,):
            raise UsageError(
                "The transaction was ended inside the block. "
                "Leave COMMIT and ROLLBACK to outbox.transaction(), which sends them at the end of the block."
            )

    def has_row(self, *, presumed: bool) -> bool | None:
        """Return whether the transaction committed, when SQLAlchemy did not report that; False if it is still open.

        Args:
            presumed: The answer for a transaction that is not open.
        """
        return presumed and not (isinstance(self._connection, AnyConnection) and self._connection.is_open)

    def committed(self) -> bool:
        """Publish the messages; return always True: the commit is as durable as configured."""
        self._memory.ended(self.transaction_id, self.messages())
        self.has_ended = True
        return True

    def rolled_back(self) -> None:
        self._memory.ended(self.transaction_id, None)
        self.has_ended = True

    def unknown(self) -> None:
        """Leave the transaction in doubt."""
        self._memory.lost(self.transaction_id)
        self.has_ended = True


class RowParticipant(MemoryParticipant):
    """A participant in table mode: messages have the ids of rows.

    Args:
        memory: Stores the messages of committed transactions, and gives ids to rows.
    """

    def __init__(
        self,
        settings: Settings,
        topics: DeclaredTopics,
        memory: Memory,
        recorder: Recorder,
        connection: LocalConnection,
    ) -> None:
        self._rows: list[tuple[int, Message]] = []
        self._settings = settings
        self._topics = topics
        xid, _ = memory.row_ids(1)
        id_ = table_transaction_id(xid, time.time_ns() // 1_000)
        super().__init__(id_, settings.service, memory, recorder, connection)

    def __len__(self) -> int:
        """Return the number of messages, without removed ones."""
        return len(self._rows)

    def strike(self, keep: int) -> None:
        """Remove all but the first `keep` messages."""
        del self._rows[keep:]

    def messages(self) -> list[PublishedMessage]:
        return [PublishedMessage.of(message, self.transaction_id, row) for row, message in self._rows]

    def publish(self, messages: Sequence[Message], *, eager: bool = False) -> list[Receipt]:
        """Add messages, all or none."""
        del eager
        require_accepted(self._settings)
        messages = with_traces(messages)
        for message in messages:
            refuse_internal(message.topic, self._settings.channel)
            if problem := why_not_for(message, self._topics.topic(message.topic)):
                raise MessageRefused(problem)
        if problem := why_not(messages, len(self._rows), sum(message.size() for _, message in self._rows)):
            raise MessageRefused(problem)
        _, rows = self._memory.row_ids(len(messages))
        self._rows += zip(rows, messages, strict=True)
        self._recorder.messages_published(self._service, len(messages))
        return [Receipt(self.transaction_id, row, message.topic) for row, message in zip(rows, messages, strict=True)]


class MemoryDraft(Draft):
    """A draft with readable messages."""

    def messages(self) -> list[PublishedMessage]:
        return [PublishedMessage.of(message, self.transaction_id, position) for position, message in self._messages]


@dataclass(frozen=True, slots=True, eq=False)
class MemoryStarter:
    """Creates the participants of one in-memory outbox of half mode in local transactions."""

    settings: HalfSettings
    sender: MemorySender
    memory: Memory

    def connection(self, driver: object) -> LocalConnection:
        return memory_connection(driver)

    def start(self, connection: LocalConnection) -> HalfParticipant:
        """Create a participant in the connection's transaction, with a new transaction id."""
        return HalfParticipant(self, connection)


class HalfParticipant(MemoryParticipant):
    """A participant in half mode, which fails as the test requested."""

    def __init__(self, starter: MemoryStarter, connection: LocalConnection) -> None:
        self._draft = MemoryDraft(make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10)))
        self._settings = starter.settings
        self._sender = starter.sender
        self._outcome_without_commit = CommitOutcome.ROLLED_BACK
        self._lost: CommitFailure | None = None
        service, recorder = starter.settings.service, starter.sender.recorder
        super().__init__(self._draft.transaction_id, service, starter.memory, recorder, connection)

    def __len__(self) -> int:
        """Return the number of messages, without removed ones."""
        return len(self._draft)

    def strike(self, keep: int) -> None:
        """Remove all but the first `keep` messages."""
        self._draft.strike(keep)

    def messages(self) -> list[PublishedMessage]:
        return self._draft.messages()

    def publish(self, messages: Sequence[Message], *, eager: bool) -> list[Receipt]:
        """Add messages, all or none."""
        del eager
        require_accepted(self._settings)
        messages = with_traces(messages)
        planned = self._draft.planned(messages, self._service, self._settings.channel.half_topic)
        for message, half in zip(messages, planned, strict=True):
            refuse(message, half, self._sender, self._sender.budget(self._connection.waiting))
        if self._memory.publication_fails():
            raise PublishFailed("Kafka does not answer. Roll the local transaction back and try again.")
        receipts = self._draft.add(messages)
        self._recorder.messages_published(self._service, len(messages))
        return receipts

    def acknowledged_half(self) -> tuple[int, int]:
        """Return partition 0, and the message's position as its offset: no half is stored."""
        return 0, len(self._draft) - 1

    def seal(self, *, marked: bool = False) -> None:
        """Raise the failure that the test requested, if any.

        Args:
            marked: Whether `begin()` began the transaction, so that its mark must still be set.
        """
        super().seal(marked=marked)
        failure = self._memory.commit_failure()
        if failure is None and self._memory.is_fenced(self.transaction_id):
            failure = CommitFailure.FENCED
        if failure is not None:
            raise self._fail(failure)
        self._recorder.halves_acked(self._service, len(self._draft), 0.0)

    def _fail(self, failure: CommitFailure) -> OutboxError:
        if failure is CommitFailure.PUBLISH_FAILED:
            return PublishFailed(
                "Kafka did not acknowledge the halves. The local transaction is rolled back. Try again."
            )
        if failure is CommitFailure.FENCED:
            self._outcome_without_commit = CommitOutcome.FENCED
            return TransactionFenced(
                f"The checker decided ROLLBACK for transaction {self.transaction_id} before it committed. "
                "All of it is rolled back. Try again."
            )
        self._lost = failure
        if failure is CommitFailure.LOST_AND_COMMITTED:
            commit_now(self._connection)
        return CommitOutcomeUnknown(
            self.transaction_id,
            f"COMMIT of transaction {self.transaction_id} was sent and no reply came. The checker will decide; "
            "outcome() returns the result.",
        )

    def committed(self) -> bool:
        self._end(CommitOutcome.COMMITTED)
        return super().committed()

    def rolled_back(self) -> None:
        """Drop the messages, or apply the requested loss of COMMIT's reply."""
        self._end(self._outcome_without_commit if self._lost is None else CommitOutcome.UNKNOWN)
        if self._lost is CommitFailure.LOST_AND_COMMITTED:
            super().committed()
        else:
            super().rolled_back()

    def unknown(self) -> None:
        """Leave the transaction in doubt; there is no checker to decide."""
        self._end(CommitOutcome.UNKNOWN)
        super().unknown()

    def _end(self, outcome: CommitOutcome) -> None:
        if len(self._draft):
            self._recorder.transaction_ended(self._service, outcome)
