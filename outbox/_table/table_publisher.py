"""Publish in table mode: check a message, insert its row, return its receipt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox._postgres.table_errors import explanation_of
from outbox._publish.sender import Sender
from outbox._publish.session_connection import BindArguments, writing_connection
from outbox._publish.tracing import with_traces
from outbox._publish.validation import refuse_own, require_accepted
from outbox._receipts import Receipt
from outbox._table.insert_connection import DbapiConnection, InsertConnection, insert_connection, require_transaction
from outbox._table.message_insert import MAX_ROWS
from outbox._table.owner_look import OwnerLook
from outbox._table.row_writer import RowWriter
from outbox._table.transaction_limits import allowed, record
from outbox.errors import MessageRefused, UsageError
from outbox.message import Message
from outbox.protocol.names import is_internal_topic
from outbox.settings import Settings

Target = Session | scoped_session[Any] | Connection | DbapiConnection
"""What `publish()` takes in table mode."""


class TablePublisher:
    """Inserts the messages of one outbox.

    Args:
        sender: Has the outbox's recorder and state; it never connects.
    """

    def __init__(self, settings: Settings, sender: Sender) -> None:
        self._group = settings.group
        self._channel = settings.channel
        self._names = settings.tables
        self._sender = sender
        look = OwnerLook(settings.tables, settings.group, sender.recorder)
        self._writer = RowWriter(settings.tables, settings.group, look)

    def publish(self, target: Target, message: Message, bind_arguments: BindArguments | None = None) -> Receipt:
        """Publish one message; as `Outbox.publish()`."""
        return self.insert(self._connection(target, bind_arguments), [message])[0]

    def publish_many(
        self, target: Target, messages: Iterable[Message], bind_arguments: BindArguments | None = None
    ) -> list[Receipt]:
        """Publish messages in order; as `Outbox.publish_many()`."""
        receipts: list[Receipt] = []
        for batch in _batches(messages):
            connection = self._connection(target, bind_arguments)
            while batch:
                found = self.insert(connection, batch)
                receipts += found
                batch = batch[len(found) :]  # noqa: PLW2901 - the first of what is left is refused
        return receipts

    def insert(self, connection: InsertConnection, messages: Sequence[Message]) -> list[Receipt]:
        """Insert the first of the messages, as many as the transaction may have.

        Args:
            messages: From 1 to `MAX_ROWS` messages.
        """
        require_accepted(self._sender)
        require_transaction(connection)
        traced = self._real(with_traces(messages))
        traced = traced[: allowed(connection, traced)]
        try:
            written = self._writer.write(connection, traced)
        except Exception as error:
            if (explanation := explanation_of(error, self._names.schema, self._names.message)) is not None:
                raise explanation from error
            raise
        published = record(connection, written.xid, written.started_us, traced)
        self._sender.recorder.messages_published(self._group, len(traced))
        return [
            Receipt(published.transaction_id, id_, message.topic, published.end)
            for id_, message in zip(written.ids, traced, strict=True)
        ]

    def _real(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages before the first one to an internal topic."""
        if not any(is_internal_topic(topic, self._channel) for topic in {message.topic for message in messages}):
            return messages
        refuse_own(messages[0], self._channel)
        return list(takewhile(self._is_real, messages))

    def _is_real(self, message: Message) -> bool:
        return not is_internal_topic(message.topic, self._channel)

    def _connection(self, target: Target, bind_arguments: BindArguments | None) -> InsertConnection:
        if isinstance(target, scoped_session):
            target = target()
        if isinstance(target, Session):
            _flush(target)
            target = writing_connection(target, bind_arguments)
        elif bind_arguments is not None:
            raise UsageError("bind_arguments choose the connection of a session. Omit them with a connection.")
        return insert_connection(target)


def _flush(session: Session) -> None:
    """Flush as a query would, so that business rows are locked before the message gets its id, which is its order.

    Whether a flush is running is a private attribute; tests on SQLAlchemy 2.0 and 2.1 fail if it changes.
    """
    if session.autoflush and not session._flushing:  # noqa: SLF001 - there is no public attribute
        session.flush()


def _batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield the messages in lists of at most `MAX_ROWS`; those before a refused one too, then raise its error."""
    batch: list[Message] = []
    try:
        for message in messages:
            batch.append(message)
            if len(batch) == MAX_ROWS:
                yield batch
                batch = []
    except MessageRefused:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
