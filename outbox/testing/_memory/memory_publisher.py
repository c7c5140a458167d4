"""The publisher of an in-memory outbox in table mode."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox._half.seal import begin
from outbox._publish.acceptance import MAX_MESSAGES, closed
from outbox._publish.local_connection import LocalConnection
from outbox._publish.own_transaction import Savepoints, core_savepoint, own_transaction
from outbox._publish.session_connection import BindArguments
from outbox._publish.sqlalchemy_session import PublishedTransaction, observed_transaction, publish, publish_on
from outbox.errors import UsageError
from outbox.message import Message
from outbox.recorder import Recorder, guarded
from outbox.settings import Settings
from outbox.testing._memory.participant import RowParticipant, memory_connection
from outbox.testing._memory.sender import DeclaredTopics
from outbox.testing._memory.state import Memory
from outbox.transaction import Outcome, Receipt, Transaction, check_transaction_id


class MemoryPublisher:
    """Keeps the messages of one outbox until COMMIT, which SQLAlchemy's events report."""

    def __init__(self, settings: Settings, recorder: Recorder | None, topics: DeclaredTopics, memory: Memory) -> None:
        self._settings = settings
        self._recorder = guarded(recorder)
        self._topics = topics
        self._memory = memory
        self._is_closed = False

    def connection(self, driver: object) -> LocalConnection:
        return memory_connection(driver)

    def start(self, connection: LocalConnection) -> RowParticipant:
        """Create a participant in the connection's transaction, with a new transaction id."""
        return RowParticipant(self._settings, self._topics, self._memory, self._recorder, connection)

    def publish(self, target: Any, message: Message, bind_arguments: BindArguments | None = None) -> Receipt:
        (receipt,) = self.publish_many(target, [message], bind_arguments)
        return receipt

    def publish_many(
        self, target: Any, messages: Iterable[Message], bind_arguments: BindArguments | None = None
    ) -> list[Receipt]:
        """Publish messages; as `Outbox.publish_many()`."""
        if self._is_closed:
            raise closed()
        if not isinstance(target, Session | scoped_session | Connection):
            raise UsageError(
                f"InMemoryOutbox cannot follow the transaction of {type(target).__module__}.{type(target).__name__}, "
                "which a real outbox takes. Give it a Session or a Connection of SQLAlchemy, or test against a real "
                "Postgres with the fixture outbox_stack."
            )
        given = list(islice(messages, MAX_MESSAGES + 1))
        return publish(target, self, given, bind_arguments=bind_arguments) if given else []

    def transaction(self, connection: object) -> AbstractContextManager[Transaction]:
        """Run a local transaction on a connection; an async one only in SQLAlchemy's greenlet."""
        if isinstance(connection, Connection):
            return observed_transaction(connection, self, partial(self._observed, connection))
        local = memory_connection(connection)
        part = self.start(local)
        transaction = Transaction(
            lambda message: part.publish([message])[0], Savepoints(local, part).one, lambda: _id(part)
        )
        return own_transaction(local, part, transaction, partial(begin, local, part.transaction_id))

    def _observed(self, connection: Connection, published: PublishedTransaction) -> Transaction:
        def publish_one(message: Message) -> Receipt:
            (receipt,) = publish_on(connection, published, self, [message], eager=False)
            return receipt

        part = published.part(self)
        return Transaction(publish_one, partial(core_savepoint, connection), lambda: _id(part))

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        del database
        check_transaction_id(transaction_id)
        return self._memory.outcome(transaction_id)

    def close(self) -> None:
        self._is_closed = True


def _id(part: RowParticipant) -> str:
    """Return the id of a transaction, which has none before its first message."""
    return part.transaction_id if len(part) else ""
