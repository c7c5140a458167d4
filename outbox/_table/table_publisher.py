"""Publish in table mode: check messages, insert their rows, return their receipts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox._postgres.table_errors import explanation_of
from outbox._publish.acceptance import MAX_MESSAGES, closed, refuse_internal, require_accepted
from outbox._publish.local_connection import local_connection
from outbox._publish.own_transaction import Savepoints, core_savepoint, core_transaction, own_transaction
from outbox._publish.session_connection import BindArguments, writing_connection
from outbox._publish.tracing import with_traces
from outbox._table.insert_connection import (
    CoreConnection,
    DbapiConnection,
    DbapiCursor,
    InsertConnection,
    insert_connection,
    require_transaction,
)
from outbox._table.message_insert import MAX_ROWS
from outbox._table.owner_look import OwnerLook
from outbox._table.row_writer import RowWriter
from outbox._table.table_outcome import ask_table_outcome
from outbox._table.transaction_limits import record, require_fit
from outbox.errors import UsageError
from outbox.message import Message
from outbox.recorder import Recorder, guarded
from outbox.settings import Settings
from outbox.transaction import Outcome, Receipt, Transaction

Insert = Callable[[InsertConnection, list[Message]], list[Receipt]]
"""Inserts the rows of messages."""


class RowParticipant:
    """What an outbox has in one local transaction: rows, which Postgres removes with what is rolled back."""

    def __init__(self, insert: Insert, connection: InsertConnection) -> None:
        self.transaction_id = ""  # until the first message
        self._insert = insert
        self._connection = connection
        self._count = 0
        self.has_ended = False

    def __len__(self) -> int:
        return self._count

    def strike(self, keep: int) -> None:
        """Count the first `keep` messages only."""
        self._count = keep

    def publish(self, message: Message) -> Receipt:
        (receipt,) = self._insert(self._connection, [message])
        if self.transaction_id not in {"", receipt.transaction_id}:
            raise UsageError(
                "The transaction was ended inside the block. "
                "Leave COMMIT and ROLLBACK to outbox.transaction(), which sends them at the end of the block."
            )
        self.transaction_id = receipt.transaction_id
        self._count += 1
        return receipt

    def seal(self, *, marked: bool = False) -> None:
        """Do nothing: the rows are written."""

    def committed(self) -> bool:
        """Return True: the rows are as durable as the business change."""
        self.has_ended = True
        return True

    def rolled_back(self) -> None:
        """Note the end: the rows are gone."""
        self.has_ended = True

    def unknown(self) -> None:
        """Note the end: the rows are there, or they are not."""
        self.has_ended = True


def row_transaction(insert: Insert, connection: object) -> AbstractContextManager[Transaction]:
    """Run a transaction on a connection of psycopg or SQLAlchemy Core."""
    if isinstance(connection, Connection):
        return core_transaction(connection, partial(_core, insert, connection))
    local = local_connection(connection)
    part = RowParticipant(insert, insert_connection(connection))
    transaction = Transaction(part.publish, Savepoints(local, part).one, lambda: part.transaction_id)
    return own_transaction(local, part, transaction)


def _core(insert: Insert, connection: Connection) -> Transaction:
    part = RowParticipant(insert, CoreConnection(connection))
    return Transaction(part.publish, partial(core_savepoint, connection), lambda: part.transaction_id)


Target = Session | scoped_session[Any] | Connection | DbapiConnection | DbapiCursor
"""What `publish()` takes in table mode."""


class TablePublisher:
    """Inserts the messages of one outbox."""

    def __init__(self, settings: Settings, recorder: Recorder | None = None) -> None:
        self._settings = settings
        self._recorder = guarded(recorder)
        self._is_closed = False
        look = OwnerLook(settings.tables, settings.service, self._recorder)
        self._writer = RowWriter(settings.tables, settings.service, look)

    def publish(self, target: Target, message: Message, bind_arguments: BindArguments | None = None) -> Receipt:
        return self.insert(self._connection(target, bind_arguments), [message])[0]

    def publish_many(
        self, target: Target, messages: Iterable[Message], bind_arguments: BindArguments | None = None
    ) -> list[Receipt]:
        given = list(islice(messages, MAX_MESSAGES + 1))
        return self.insert(self._connection(target, bind_arguments), given) if given else []

    def insert(self, connection: InsertConnection, messages: Sequence[Message]) -> list[Receipt]:
        """Insert messages, all or none."""
        require_accepted(self._settings)
        require_transaction(connection)
        traced = with_traces(messages)
        for topic in {message.topic for message in traced}:
            refuse_internal(topic, self._settings.channel)
        require_fit(connection, traced)
        receipts: list[Receipt] = []
        for first in range(0, len(traced), MAX_ROWS):
            receipts += self._write(connection, traced[first : first + MAX_ROWS])
        return receipts

    def _write(self, connection: InsertConnection, messages: Sequence[Message]) -> list[Receipt]:
        names = self._settings.tables
        try:
            written = self._writer.write(connection, messages)
        except Exception as error:
            if (explanation := explanation_of(error, names.schema, names.message)) is not None:
                raise explanation from error
            raise
        published = record(connection, written.xid, written.started_us, messages)
        self._recorder.messages_published(self._settings.service, len(messages))
        return [
            Receipt(published.transaction_id, id_, message.topic)
            for id_, message in zip(written.ids, messages, strict=True)
        ]

    def _connection(self, target: Target, bind_arguments: BindArguments | None) -> InsertConnection:
        if self._is_closed:
            raise closed()
        if isinstance(target, scoped_session):
            target = target()
        if isinstance(target, Session):
            _flush(target)
            target = writing_connection(target, bind_arguments)
        elif bind_arguments is not None:
            raise UsageError("bind_arguments choose the connection of a session. Omit them with a connection.")
        return insert_connection(target)

    def transaction(self, connection: object) -> AbstractContextManager[Transaction]:
        """Run a local transaction on a connection; an async one only in SQLAlchemy's greenlet."""
        return row_transaction(self.insert, connection)

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        return ask_table_outcome(self._settings.tables, transaction_id, database)

    def close(self) -> None:
        self._is_closed = True


def _flush(session: Session) -> None:
    """Flush as a query would, so that business rows are locked before the message gets its id, which is its order.

    Whether a flush is running is a private attribute; tests on SQLAlchemy 2.0 and 2.1 fail if it changes.
    """
    if session.autoflush and not session._flushing:  # noqa: SLF001 - there is no public attribute
        session.flush()
