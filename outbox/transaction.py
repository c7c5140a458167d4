"""`outbox.transaction(connection)`: a local transaction whose BEGIN and COMMIT the library owns.

On psycopg it sees the command tag of COMMIT, so that a COMMIT that says yes and means no cannot pass (R5). On a Core
connection of SQLAlchemy it goes the way of sessions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from sqlalchemy.engine import Connection

from outbox._publish.local_connection import LocalConnection
from outbox._publish.participant import Participant, Starter
from outbox._publish.seal import begin
from outbox._publish.sqlalchemy_session import PublishedTransaction, publish_on, published_transaction
from outbox._receipts.receipt import Receipt
from outbox._receipts.transaction_end import LocalState
from outbox.errors import CommitOutcomeUnknown, OutboxError, UsageError
from outbox.message import Message

_COMMIT = sql.SQL("COMMIT")


class Transaction(ABC):
    """An open local transaction.

    Args:
        eager: Whether halves go out at `publish()`, where nothing else is said.
    """

    def __init__(self, *, eager: bool) -> None:
        self.is_open = True
        self._eager = eager

    @property
    @abstractmethod
    def transaction_id(self) -> str:
        """Id of the transaction, a UUIDv7."""

    @abstractmethod
    def savepoint(self) -> AbstractContextManager[None]:
        """A SAVEPOINT: an exception rolls it back, with the messages published inside, and goes on."""

    @abstractmethod
    def _publish(self, message: Message, *, eager: bool) -> Receipt:
        """Publish a message."""

    def publish(self, message: Message, *, eager: bool | None = None) -> Receipt:
        """Publish a message with this transaction.

        Args:
            message: The message.
            eager: Whether its half goes out now; None: as the `Outbox` was told.

        Raises:
            MessageRefused: It cannot be published; nothing was written.
            UsageError: The transaction has ended, or a block of psycopg's own `transaction()` is open inside it.
            PublishFailed: Kafka does not answer.
        """
        if not self.is_open:
            raise UsageError("this transaction has ended: publish inside the with block")
        return self._publish(message, eager=self._eager if eager is None else eager)


class OwnTransaction(Transaction):
    """A transaction on a psycopg connection.

    Args:
        connection: The connection.
        part: The outbox's part in it.
        eager: Whether halves go out at `publish()`.
    """

    def __init__(self, connection: LocalConnection, part: Participant, *, eager: bool) -> None:
        super().__init__(eager=eager)
        self._connection = connection
        self._part = part
        self._savepoints = 0
        self._open_savepoints = 0

    @property
    def transaction_id(self) -> str:
        """Id of the transaction, a UUIDv7."""
        return self._part.draft.transaction_id

    def _publish(self, message: Message, *, eager: bool) -> Receipt:
        if self._connection.in_block:
            raise UsageError(
                "inside connection.transaction() nothing can be published, as its rollback would not strike the "
                "message: use tx.savepoint()"
            )
        return self._part.publish(message, early=eager and not self._open_savepoints)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A SAVEPOINT: an exception rolls it back, with the messages published inside, and goes on."""
        self._savepoints += 1
        name = sql.Identifier(f"outbox_{self._savepoints}")
        kept = len(self._part.draft)
        self._connection.execute(sql.SQL("SAVEPOINT {}").format(name))
        self._open_savepoints += 1
        try:
            yield
        except BaseException:
            self._part.draft.strike(kept)
            self._connection.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(name))
            raise
        finally:
            self._open_savepoints -= 1
        self._connection.execute(sql.SQL("RELEASE SAVEPOINT {}").format(name))


class CoreTransaction(Transaction):
    """A transaction on a Core connection of SQLAlchemy.

    Args:
        connection: The connection, in its transaction.
        starter: Of the outbox.
        eager: Whether halves go out at `publish()`.
    """

    def __init__(self, connection: Connection, starter: Starter, *, eager: bool) -> None:
        super().__init__(eager=eager)
        self._connection = connection
        self._starter = starter
        self.published: PublishedTransaction = published_transaction(connection, starter)
        self._part = self.published.part(starter)

    @property
    def transaction_id(self) -> str:
        """Id of the transaction, a UUIDv7."""
        return self._part.draft.transaction_id

    def _publish(self, message: Message, *, eager: bool) -> Receipt:
        return publish_on(self._connection, self.published, self._starter, message, eager=eager)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A SAVEPOINT: an exception rolls it back, with the messages published inside, and goes on."""
        with self._connection.begin_nested():
            yield


@contextmanager
def own_transaction(starter: Starter, connection: LocalConnection, *, eager: bool) -> Iterator[Transaction]:
    """BEGIN, the caller's statements, the seal, COMMIT with its command tag seen, the op marker.

    Args:
        starter: Of the outbox.
        connection: A psycopg connection.
        eager: Whether halves go out at `publish()`.

    Raises:
        UsageError: It is already in a transaction.
        CommitOutcomeUnknown: COMMIT was sent and its outcome is not known.
        OutboxError: The seal failed; all is rolled back.
    """
    _require_idle(connection)
    part = starter.start(connection)
    transaction = OwnTransaction(connection, part, eager=eager)
    with connection.autocommit(on=False):
        sealed = False
        try:
            begin(connection, transaction.transaction_id)
            yield transaction
            transaction.is_open = False
            connection.require_healthy()
            if part.draft:
                part.seal(marked=True)
            sealed = True
            _commit(connection, part)
        except BaseException as error:
            transaction.is_open = False
            if part.draft.end.state is LocalState.OPEN:
                _abandon(connection, part, error, sealed=sealed)
            raise


@contextmanager
def core_transaction(starter: Starter, connection: Connection, *, eager: bool) -> Iterator[Transaction]:
    """The same on a Core connection.

    Raises:
        UsageError: It is already in a transaction, or cannot be used.
        CommitOutcomeUnknown: COMMIT was sent and its outcome is not known.
        OutboxError: The seal failed; all is rolled back.
    """
    if connection.in_transaction():
        raise UsageError(
            "the connection is already in a transaction: commit it or roll it back first, "
            "outbox.transaction() owns BEGIN and COMMIT"
        )
    with connection.begin():
        transaction = CoreTransaction(connection, starter, eager=eager)
        try:
            yield transaction
        finally:
            transaction.is_open = False
    transaction.published.look(told=True)


def _require_idle(connection: LocalConnection) -> None:
    if connection.closed:
        raise UsageError("the connection is closed: open a new one")
    if connection.status is not TransactionStatus.IDLE:
        raise UsageError(
            "the connection is already in a transaction: commit it or roll it back first, "
            "outbox.transaction() owns BEGIN and COMMIT"
        )


def _abandon(connection: LocalConnection, part: Participant, error: BaseException, *, sealed: bool) -> None:
    """End a transaction after an error that nobody has dealt with; a signal handler may raise it at any line (R47).

    Args:
        connection: The connection.
        part: The outbox's part.
        error: The error.
        sealed: Whether COMMIT may have been sent.
    """
    if sealed and connection.status is not TransactionStatus.INTRANS:
        part.unknown()
    else:
        _roll_back(connection, part, error)


def _roll_back(connection: LocalConnection, part: Participant, error: BaseException) -> None:
    try:
        connection.roll_back()
    finally:
        part.rolled_back(f"the local transaction failed ({type(error).__name__}), COMMIT was not sent")


def _commit(connection: LocalConnection, part: Participant) -> None:
    transaction_id = part.draft.transaction_id
    try:
        tag = connection.execute(_COMMIT).tag
    except psycopg.Error as error:
        if connection.commit_definitely_failed(error):
            part.rolled_back(f"COMMIT failed ({type(error).__name__})")
            raise
        part.unknown()
        if not part.draft:
            raise  # there is no row by which anybody could tell
        raise CommitOutcomeUnknown(
            transaction_id,
            f"COMMIT of transaction {transaction_id} was sent and no reply came: the checker will decide",
        ) from error
    except BaseException:
        part.unknown()
        connection.close()
        raise
    if tag != "COMMIT":
        part.rolled_back(f"COMMIT answered {tag}")
        raise OutboxError(
            f"the local transaction had failed: COMMIT answered {tag}, nothing was committed or published; run it again"
        )
    if not part.committed():
        raise CommitOutcomeUnknown(
            transaction_id, f"COMMIT of transaction {transaction_id} was not replicated: the checker will decide"
        )
