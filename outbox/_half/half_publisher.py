"""Publish in half mode: with a session, with a connection, and with a transaction of the library's own."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from outbox._half.half_outcome import ask_outcome
from outbox._half.seal import begin
from outbox._half.sender import Sender
from outbox._postgres.callback_table import CallbackTable
from outbox._publish.acceptance import MAX_MESSAGES
from outbox._publish.local_connection import LocalConnection, local_connection
from outbox._publish.own_transaction import Savepoints, core_savepoint, own_transaction
from outbox._publish.publisher import SessionParticipant, Starter
from outbox._publish.session_connection import BindArguments, plain_session, writing_connection
from outbox._publish.sqlalchemy_session import (
    PublishedTransaction,
    innermost_savepoint,
    observed_transaction,
    publish,
    publish_on,
    published_transaction,
)
from outbox.errors import UsageError
from outbox.message import Message
from outbox.settings import HalfSettings
from outbox.transaction import HalfTransaction, Outcome, Receipt, check_transaction_id


class HalfParticipant(SessionParticipant, Protocol):
    """A participant that may have sent halves already."""

    def acknowledged_half(self) -> tuple[int, int]:
        """Wait until the last eager half is stored; return its half partition and offset."""


class StoredHalf(NamedTuple):
    """An eagerly published message whose half is stored."""

    receipt: Receipt
    partition: int
    offset: int


class HalfPublisher:
    """Publishes the messages of one outbox."""

    def __init__(self, settings: HalfSettings, sender: Sender, starter: Starter[HalfParticipant]) -> None:
        self._settings = settings
        self._sender = sender
        self._starter = starter

    def publish(
        self,
        target: Any,
        message: Message,
        bind_arguments: BindArguments | None = None,
        *,
        eager: bool | None = None,
    ) -> Receipt:
        (receipt,) = self.publish_many(target, [message], bind_arguments, eager=eager)
        return receipt

    def publish_many(
        self,
        target: Any,
        messages: Iterable[Message],
        bind_arguments: BindArguments | None = None,
        *,
        eager: bool | None = None,
    ) -> list[Receipt]:
        self._sender.require_answering()  # before a connection leaves the pool
        if not (given := list(islice(messages, MAX_MESSAGES + 1))):
            return []
        return publish(target, self._starter, given, eager=self._eager(eager), bind_arguments=bind_arguments)

    def store_half(self, session: Session | scoped_session[Any], message: Message) -> StoredHalf:
        """Publish a message eagerly, and wait until its half is stored."""
        self._sender.require_answering()
        session = plain_session(session)
        connection = writing_connection(session)
        if innermost_savepoint(connection):
            raise UsageError("A SAVEPOINT is open, inside which a half cannot be sent. Release it first.")
        (receipt,) = publish(session, self._starter, [message], eager=True)
        part = published_transaction(connection, self._starter).part(self._starter)
        return StoredHalf(receipt, *part.acknowledged_half())

    def transaction(self, connection: object, *, eager: bool | None = None) -> AbstractContextManager[HalfTransaction]:
        """Run a local transaction on a connection; an async one only in SQLAlchemy's greenlet."""
        if isinstance(connection, Connection):
            return self._core_transaction(connection, eager=self._eager(eager))
        return self._own_transaction(self._starter.connection(connection), eager=self._eager(eager))

    def _core_transaction(self, connection: Connection, *, eager: bool) -> AbstractContextManager[HalfTransaction]:
        def transaction_of(published: PublishedTransaction) -> HalfTransaction:
            def publish_one(message: Message, eager: bool) -> Receipt:  # noqa: FBT001 - the only question
                (receipt,) = publish_on(connection, published, self._starter, [message], eager=eager)
                return receipt

            id_ = published.part(self._starter).transaction_id
            return HalfTransaction(publish_one, partial(core_savepoint, connection), lambda: id_, eager=eager)

        return observed_transaction(connection, self._starter, transaction_of)

    def _own_transaction(self, connection: LocalConnection, *, eager: bool) -> AbstractContextManager[HalfTransaction]:
        part = self._starter.start(connection)
        savepoints = Savepoints(connection, part)

        def publish_one(message: Message, eager: bool) -> Receipt:  # noqa: FBT001 - the only question
            if connection.in_block:
                raise UsageError(
                    "publish() does not work inside connection.transaction(), whose rollback would not remove the "
                    "message. Use tx.savepoint()."
                )
            (receipt,) = part.publish([message], eager=eager and not savepoints.are_open)
            return receipt

        transaction = HalfTransaction(publish_one, savepoints.one, lambda: part.transaction_id, eager=eager)
        return own_transaction(connection, part, transaction, partial(begin, connection, part.transaction_id))

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        check_transaction_id(transaction_id)
        if isinstance(database, Engine):
            with closing(database.raw_connection()) as pooled:
                return self.outcome(transaction_id, pooled.driver_connection)
        table = CallbackTable(self._settings.tables)
        return ask_outcome(self._settings, table, local_connection(database), transaction_id)

    def close(self, timeout: float | None = None) -> None:
        """Flush op markers, and release the connection to Kafka."""
        self._sender.close(timeout)

    def _eager(self, given: bool | None) -> bool:  # noqa: FBT001 - three values
        return self._settings.eager if given is None else given
