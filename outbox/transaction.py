"""`outbox.transaction(connection)`: a local transaction whose BEGIN and COMMIT the library owns.

On psycopg the library checks the command tag of COMMIT: Postgres answers the COMMIT of a failed transaction with
ROLLBACK and no error (R5). A Core connection of SQLAlchemy is handled as a session is.
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
from outbox._receipts import LocalState, Receipt
from outbox.errors import CommitOutcomeUnknown, OutboxError, UsageError
from outbox.message import Message

_COMMIT = sql.SQL("COMMIT")


class Transaction(ABC):
    """An open local transaction.

    Args:
        eager: Default of `publish(eager=)`: send halves at `publish()`, not at COMMIT.
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
        """Open a SAVEPOINT; an exception rolls it back, with the messages published inside, and is raised again."""

    @abstractmethod
    def _publish(self, message: Message, *, eager: bool) -> Receipt:
        """Publish a message."""

    def publish(self, message: Message, *, eager: bool | None = None) -> Receipt:
        """Publish a message with this transaction.

        Args:
            eager: Send the half now, not at COMMIT; None: the `eager` of the transaction.

        Raises:
            MessageRefused: The message cannot be published; nothing was written.
            UsageError: The transaction has ended, or a block of psycopg's own `transaction()` is open inside it.
            PublishFailed: Kafka does not answer.
        """
        if not self.is_open:
            raise UsageError("This transaction has ended. Publish inside the with block.")
        return self._publish(message, eager=self._eager if eager is None else eager)


def known_id(transaction_id: str) -> str:
    """Return a transaction id; refuse an empty one."""
    if not transaction_id:
        raise UsageError("In table mode a transaction has no id before its first message. Publish first.")
    return transaction_id


class OwnTransaction(Transaction):
    """A transaction on a psycopg connection."""

    def __init__(self, connection: LocalConnection, part: Participant, *, eager: bool) -> None:
        super().__init__(eager=eager)
        self._connection = connection
        self._part = part
        self._savepoints = 0
        self._open_savepoints = 0

    @property
    def transaction_id(self) -> str:
        """Id of the transaction, a UUIDv7."""
        return known_id(self._part.draft.transaction_id)

    def _publish(self, message: Message, *, eager: bool) -> Receipt:
        if self._connection.in_block and not self._part.writes_rows:
            raise UsageError(
                "publish() does not work inside connection.transaction(), whose rollback would not remove the "
                "message. Use tx.savepoint()."
            )
        return self._part.publish(message, eager=eager and not self._open_savepoints)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Open a SAVEPOINT; an exception rolls it back, with the messages published inside, and is raised again."""
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
    """A transaction on a Core connection of SQLAlchemy."""

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
        """Open a SAVEPOINT; an exception rolls it back, with the messages published inside, and is raised again."""
        with self._connection.begin_nested():
            yield


@contextmanager
def own_transaction(starter: Starter, connection: LocalConnection, *, eager: bool) -> Iterator[Transaction]:
    """Run a transaction on a psycopg connection: BEGIN, the caller's block, the seal, COMMIT, the op marker."""
    _require_idle(connection)
    part = starter.start(connection)
    transaction = OwnTransaction(connection, part, eager=eager)
    with connection.autocommit(on=False):
        sealed = False
        try:
            if not part.writes_rows:  # else the first statement begins it
                begin(connection, part.draft.transaction_id)
            yield transaction
            transaction.is_open = False
            connection.require_healthy(begun=bool(part.draft) or not part.writes_rows)
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
    """Run a transaction on a Core connection of SQLAlchemy."""
    if connection.in_transaction():
        raise UsageError(
            "The connection is already in a transaction. Commit it or roll it back first: "
            "outbox.transaction() sends BEGIN and COMMIT itself."
        )
    with connection.begin():
        transaction = CoreTransaction(connection, starter, eager=eager)
        try:
            yield transaction
        finally:
            transaction.is_open = False
    transaction.published.conclude(reported=True)


def _require_idle(connection: LocalConnection) -> None:
    if connection.closed:
        raise UsageError("The connection is closed. Open a new one.")
    if connection.status is not TransactionStatus.IDLE:
        raise UsageError(
            "The connection is already in a transaction. Commit it or roll it back first: "
            "outbox.transaction() sends BEGIN and COMMIT itself."
        )


def _abandon(connection: LocalConnection, part: Participant, error: BaseException, *, sealed: bool) -> None:
    """End a transaction after an error from any line; a signal handler may raise one anywhere (R47).

    Args:
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
            raise  # without messages there is no row to look up the outcome
        raise CommitOutcomeUnknown(
            transaction_id,
            f"COMMIT of transaction {transaction_id} was sent and no reply came. "
            f"{'' if part.writes_rows else 'The checker will decide; '}outcome() returns the result.",
        ) from error
    except BaseException:
        part.unknown()
        connection.close()
        raise
    if tag != "COMMIT":
        part.rolled_back(f"COMMIT answered {tag}")
        raise OutboxError(
            f"The local transaction had failed, so Postgres answered COMMIT with {tag}. "
            "Nothing was committed or published. Run the transaction again."
        )
    if not part.committed():
        raise CommitOutcomeUnknown(
            transaction_id,
            f"COMMIT of transaction {transaction_id} was not replicated. "
            "The checker will decide; outcome() returns the result.",
        )
