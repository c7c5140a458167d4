"""`outbox.transaction(connection)`: a local transaction on psycopg whose BEGIN and COMMIT the library owns.

It sees the command tag of COMMIT, so that a COMMIT that says yes and means no cannot pass (R5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from outbox.draft import Draft
from outbox.errors import CommitOutcomeUnknown, OutboxError, UsageError
from outbox.message import Message, Receipt
from outbox.seal import PsycopgConnection, Sealed, Sealer, begin, require_healthy, roll_back

_DEFINITE = re.compile(r"(?!08|57P0)[0-9A-Z]{5}")
"""SQLSTATEs with which COMMIT definitely failed: not a lost connection, not a server that was shut down."""


class Transaction:
    """An open local transaction.

    Args:
        publish: Checks a message and adds it to the draft.
        draft: What was published so far.
        connection: The connection.
    """

    def __init__(
        self, publish: Callable[[Draft, Message], Receipt], draft: Draft, connection: PsycopgConnection
    ) -> None:
        self._publish = publish
        self._draft = draft
        self._connection = connection
        self._savepoints = 0
        self.is_open = True

    @property
    def transaction_id(self) -> str:
        """Id of the transaction, a UUIDv7."""
        return self._draft.transaction_id

    def publish(self, message: Message) -> Receipt:
        """Publish a message with this transaction.

        Raises:
            MessageRefused: It cannot be published; nothing was written.
            UsageError: The transaction has ended.
        """
        if not self.is_open:
            raise UsageError("this transaction has ended: publish inside the with block")
        return self._publish(self._draft, message)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A SAVEPOINT: an exception rolls it back, with the messages published inside, and goes on."""
        self._savepoints += 1
        name = sql.Identifier(f"outbox_{self._savepoints}")
        kept = len(self._draft)
        self._connection.execute(sql.SQL("SAVEPOINT {}").format(name))
        try:
            yield
        except BaseException:
            self._draft.strike(kept)
            self._connection.execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(name))
            raise
        self._connection.execute(sql.SQL("RELEASE SAVEPOINT {}").format(name))


@contextmanager
def own_transaction(
    sealer: Sealer, connection: PsycopgConnection, publish: Callable[[Draft, Message], Receipt], draft: Draft
) -> Iterator[Transaction]:
    """BEGIN, the caller's statements, the seal, COMMIT with its command tag seen, the op marker.

    Raises:
        UsageError: It is no psycopg connection, or already in a transaction.
        CommitOutcomeUnknown: COMMIT was sent and its outcome is not known.
        OutboxError: The seal failed; all is rolled back.
    """
    _require_idle(connection)
    transaction = Transaction(publish, draft, connection)
    with _out_of_autocommit(connection):
        try:
            begin(connection, draft.transaction_id)
            yield transaction
            transaction.is_open = False
            require_healthy(connection)
            sealed = sealer.seal(connection, draft, marked=True) if draft else None
        except BaseException:
            transaction.is_open = False
            roll_back(connection)
            raise
        if sealed is not None:
            _commit(connection, sealed)
        else:
            connection.execute("COMMIT")


@contextmanager
def _out_of_autocommit(connection: PsycopgConnection) -> Iterator[None]:
    """Let psycopg begin the transaction, with the isolation level that the connection was given."""
    autocommit = connection.autocommit
    connection.autocommit = False
    try:
        yield
    finally:
        if autocommit and not connection.closed:
            connection.autocommit = True


def _require_idle(connection: Any) -> None:
    if not isinstance(connection, psycopg.Connection):
        raise UsageError(f"outbox.transaction() takes a psycopg connection, not {type(connection).__name__}")
    if connection.closed:
        raise UsageError("the connection is closed")
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise UsageError("the connection is already in a transaction: outbox.transaction() owns BEGIN and COMMIT")


def _commit(connection: PsycopgConnection, sealed: Sealed) -> None:
    transaction_id = sealed.entry.transaction_id
    try:
        tag = connection.execute("COMMIT").statusmessage
    except psycopg.Error as error:
        sealed.close()
        if error.sqlstate and _DEFINITE.fullmatch(error.sqlstate) and not connection.closed:
            raise
        raise CommitOutcomeUnknown(
            transaction_id,
            f"COMMIT of transaction {transaction_id} was sent and no reply came: the checker will decide",
        ) from error
    except BaseException:
        sealed.close()
        connection.close()
        raise
    if tag != "COMMIT":
        sealed.close()
        raise OutboxError(
            f"the local transaction had failed: COMMIT answered {tag}, nothing was committed or published"
        )
    if not sealed.committed():
        raise CommitOutcomeUnknown(
            transaction_id, f"COMMIT of transaction {transaction_id} was not replicated: the checker will decide"
        )
