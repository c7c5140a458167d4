"""What an in-memory outbox has in a local transaction that SQLAlchemy's events follow: rows, or halves."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakKeyDictionary

from outbox._half.draft import Draft, refuse, why_not_for
from outbox._half.sender import Sender
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.topic_contract import ENVELOPE_BYTES
from outbox._publish.acceptance import refuse_internal, require_accepted
from outbox._publish.local_connection import LocalConnection
from outbox._publish.tracing import with_traces
from outbox._publish.waiting import BLOCKING, Budget, Waiting
from outbox._rules.topic_description import TopicDescription
from outbox._table.table_publisher import why_not
from outbox.errors import MessageRefused, TransactionFenced, UsageError
from outbox.message import Message
from outbox.protocol.identifiers import make_transaction_id, table_transaction_id
from outbox.protocol.names import sibling_topic
from outbox.recorder import CommitOutcome, Recorder
from outbox.settings import HalfSettings, Settings
from outbox.testing._memory.any_connection import AnyConnection, memory_connection
from outbox.testing._memory.state import Memory, PublishedMessage, new_xid, row_ids
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

    real_topic_now = real_topic  # declared topics do not change

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


_MARK = "SELECT current_setting('outbox.transaction', true)"


class MemoryParticipant(Draft):
    """An in-memory outbox's participant in one local transaction: a draft that can be read."""

    def __init__(self, transaction_id: str, service: str, memory: Memory, connection: LocalConnection) -> None:
        super().__init__(transaction_id)
        self._service = service
        self._memory = memory
        self._connection = connection
        self.has_ended = False
        memory.opened(transaction_id, self)

    def messages(self) -> list[PublishedMessage]:
        """Return the messages, without removed ones."""
        return [PublishedMessage.of(message, self.transaction_id, position) for position, message in self._messages]

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


class Rows(NamedTuple):
    """Creates the participants of one in-memory outbox of table mode in local transactions."""

    settings: Settings
    recorder: Recorder
    topics: DeclaredTopics
    memory: Memory
    two_phases: bool = True

    def connection(self, driver: object) -> LocalConnection:
        return memory_connection(driver)

    def start(self, connection: LocalConnection) -> RowParticipant:
        """Create a participant in the connection's transaction, with a new transaction id."""
        return RowParticipant(self, connection)

    def refuse(self, messages: Sequence[Message]) -> None:
        """Refuse messages to topics that are not declared."""
        for message in messages:
            if problem := why_not_for(message, self.topics.topic(message.topic)):
                raise MessageRefused(problem)


_row_transactions: WeakKeyDictionary[LocalConnection, str] = WeakKeyDictionary()  # of all outboxes, as in Postgres


class RowParticipant(MemoryParticipant):
    """A participant in table mode: messages have the ids of rows."""

    def __init__(self, rows: Rows, connection: LocalConnection) -> None:
        self._rows = rows
        if connection not in _row_transactions:
            _row_transactions[connection] = table_transaction_id(new_xid(), time.time_ns() // 1_000)
        super().__init__(_row_transactions[connection], rows.settings.service, rows.memory, connection)

    def publish(self, messages: Sequence[Message], *, eager: bool = False) -> list[Receipt]:
        """Add messages, all or none."""
        del eager
        require_accepted(self._rows.settings)
        messages = with_traces(messages)
        for message in messages:
            refuse_internal(message.topic, self._rows.settings.channel)
        self._rows.refuse(messages)
        if problem := why_not(messages, len(self), self._bytes):
            raise MessageRefused(problem)
        ids = row_ids(len(messages))
        self._messages += zip(ids, messages, strict=True)
        self._bytes += sum(message.size() for message in messages)
        self._rows.recorder.messages_published(self._service, len(messages))
        return [Receipt(self.transaction_id, id_, message.topic) for id_, message in zip(ids, messages, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """Creates the participants of one in-memory outbox of half mode in local transactions."""

    settings: HalfSettings
    sender: MemorySender
    memory: Memory
    two_phases: bool = False

    def connection(self, driver: object) -> LocalConnection:
        return memory_connection(driver)

    def start(self, connection: LocalConnection) -> HalfParticipant:
        """Create a participant in the connection's transaction, with a new transaction id."""
        return HalfParticipant(self, connection)


class HalfParticipant(MemoryParticipant):
    """A participant in half mode."""

    def __init__(self, halves: Halves, connection: LocalConnection) -> None:
        self._halves = halves
        self._recorder = halves.sender.recorder
        self._outcome_without_commit = CommitOutcome.ROLLED_BACK
        id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        super().__init__(id_, halves.settings.service, halves.memory, connection)

    def publish(self, messages: Sequence[Message], *, eager: bool) -> list[Receipt]:
        """Add messages, all or none."""
        del eager
        settings, sender = self._halves.settings, self._halves.sender
        require_accepted(settings)
        messages = with_traces(messages)
        planned = self.planned(messages, self._service, settings.channel.half_topic)
        for message, half in zip(messages, planned, strict=True):
            refuse(message, half, sender, sender.budget(self._connection.waiting))
        receipts = self.add(messages)
        self._recorder.messages_published(self._service, len(messages))
        return receipts

    def acknowledged_half(self) -> tuple[int, int]:
        """Return partition 0, and the message's position as its offset: no half is stored."""
        return 0, len(self) - 1

    def seal(self, *, marked: bool = False) -> None:
        """Refuse a transaction whose outcome was asked for."""
        super().seal(marked=marked)
        if self._memory.is_fenced(self.transaction_id):
            self._outcome_without_commit = CommitOutcome.FENCED
            raise TransactionFenced(f"Transaction {self.transaction_id} is decided: it is rolled back. Try again.")
        self._recorder.halves_acked(self._service, len(self), 0.0)

    def committed(self) -> bool:
        self._end(CommitOutcome.COMMITTED)
        return super().committed()

    def rolled_back(self) -> None:
        self._end(self._outcome_without_commit)
        super().rolled_back()

    def unknown(self) -> None:
        """Leave the transaction in doubt; there is no checker to decide."""
        self._end(CommitOutcome.UNKNOWN)
        super().unknown()

    def _end(self, outcome: CommitOutcome) -> None:
        if len(self):
            self._recorder.transaction_ended(self._service, outcome)
