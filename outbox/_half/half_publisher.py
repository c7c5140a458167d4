"""Publish in half mode: with a session, with a connection, and with a transaction of the library's own."""

import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from functools import partial
from itertools import islice
from typing import Any, LiteralString, NamedTuple, Protocol

from psycopg.pq import TransactionStatus
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from outbox._half.cluster_connection import CLOSE_SECONDS
from outbox._half.seal import begin
from outbox._half.sender import Sender
from outbox._postgres.callback_table import CallbackRow, CallbackTable, may_be_purged
from outbox._postgres.table_errors import explained
from outbox._publish.acceptance import MAX_MESSAGES
from outbox._publish.local_connection import LocalConnection, local_connection
from outbox._publish.own_transaction import Savepoints, core_savepoint, own_transaction
from outbox._publish.publisher import SessionParticipant
from outbox._publish.session_connection import BindArguments, plain_session, writing_connection
from outbox._publish.sqlalchemy_session import (
    PublishedTransaction,
    Starter,
    innermost_savepoint,
    observed_transaction,
    publish,
    publish_on,
    published_transaction,
)
from outbox.errors import UsageError
from outbox.message import Message
from outbox.protocol.identifiers import lock_number
from outbox.protocol.op import NO_OFFSET
from outbox.protocol.positions import Positions
from outbox.settings import HalfSettings, Settings
from outbox.transaction import HalfTransaction, Outcome, Receipt, check_transaction_id

_ASK: LiteralString = (
    "SELECT pg_try_advisory_xact_lock(%s),"
    " (SELECT value::bigint FROM {meta} WHERE key = 'purged_until'),"
    " set_config('synchronous_commit', 'on', true),"
    " set_config('idle_in_transaction_session_timeout', '5s', true)"
)
_FENCE: LiteralString = (
    "INSERT INTO {transaction} (transaction_id, service, state, channel, half_topic_id, half_partition,"
    " first_offset, last_offset, positions) VALUES (%s, %s, 'R', %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (transaction_id) DO NOTHING"
)
_PURGED_UNTIL: LiteralString = "SELECT max(value::bigint) FROM {meta} WHERE key = 'purged_until'"
_READ: LiteralString = (
    "SELECT state, (SELECT max(value::bigint) FROM {meta} WHERE key = 'purged_until')"
    " FROM {transaction} WHERE transaction_id = %s"
)
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_COMMIT = "COMMIT"
_NO_TOPIC = str(uuid.UUID(int=0))


def ask_outcome(settings: Settings, table: CallbackTable, connection: LocalConnection, transaction_id: str) -> Outcome:
    """Return a transaction's outcome, on an idle connection; fence it if it neither committed nor holds its lock."""
    _check(connection, transaction_id)
    with connection.autocommit(on=True):
        try:
            with explained(table.names.schema, table.names.transaction):
                fenced = _fence(settings, table, connection, transaction_id)
                row = connection.execute(table.compose(_READ), (transaction_id,)).row
        except BaseException:
            connection.roll_back()
            raise
    if row is None:
        return Outcome.TOO_OLD if fenced else Outcome.OPEN
    state, purged_until = row
    if state == "C":
        return Outcome.COMMITTED
    # A copied half, or a topic that is read again, can produce a rollback row for a transaction whose row was purged.
    return Outcome.TOO_OLD if may_be_purged(transaction_id, purged_until) else Outcome.ROLLED_BACK


def _check(connection: LocalConnection, transaction_id: str) -> None:
    check_transaction_id(transaction_id)
    if connection.status is not TransactionStatus.IDLE:
        raise UsageError("The connection is in a transaction. Give outcome() another connection, or an engine.")


def _fence(settings: Settings, table: CallbackTable, connection: LocalConnection, transaction_id: str) -> bool:
    """Insert the rollback row, unless the lock is held or the row may have been purged; return if it was free."""
    connection.execute(_BEGIN)
    asked = connection.execute(table.compose(_ASK), (lock_number(transaction_id),)).row
    free, purged_until = (bool(asked[0]), asked[1]) if asked is not None else (False, None)
    if free and not may_be_purged(transaction_id, purged_until):
        rollback_row = CallbackRow(
            transaction_id, settings.service, settings.channel.name, _NO_TOPIC, 0, NO_OFFSET, NO_OFFSET, Positions(())
        )
        connection.execute(table.compose(_FENCE), rollback_row.values())
        now = connection.execute(table.compose(_PURGED_UNTIL)).row
        if may_be_purged(transaction_id, now[0] if now is not None else None):
            connection.roll_back()  # the INSERT waited for a purge of the same row
            return free
    connection.execute(_COMMIT)
    return free


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
            return HalfTransaction(publish_one, partial(core_savepoint, connection), id_, eager=eager)

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

        transaction = HalfTransaction(publish_one, savepoints.one, part.transaction_id, eager=eager)
        return own_transaction(connection, part, transaction, partial(begin, connection, part.transaction_id))

    def outcome(self, transaction_id: str, database: object) -> Outcome:
        check_transaction_id(transaction_id)
        if isinstance(database, Engine):
            with closing(database.raw_connection()) as pooled:
                return self.outcome(transaction_id, pooled.driver_connection)
        table = CallbackTable(self._settings.tables)
        return ask_outcome(self._settings, table, local_connection(database), transaction_id)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Flush op markers, and release the connection to Kafka."""
        self._sender.close(timeout)

    def _eager(self, given: bool | None) -> bool:  # noqa: FBT001 - three values
        return self._settings.eager if given is None else given
