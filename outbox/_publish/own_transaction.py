"""`outbox.transaction(connection)` on psycopg: a local transaction whose BEGIN and COMMIT the library owns.

It checks the command tag of COMMIT: Postgres answers the COMMIT of a failed transaction with ROLLBACK and no error
(R5).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy.engine import Connection

from outbox._publish.local_connection import LocalConnection
from outbox._publish.publisher import Participant
from outbox.errors import CommitOutcomeUnknown, OutboxError, UsageError
from outbox.transaction import HalfTransaction

_COMMIT = "COMMIT"
_IN_TRANSACTION = (
    "The connection is already in a transaction. Commit it or roll it back first: "
    "outbox.transaction() sends BEGIN and COMMIT itself."
)


class Savepoints:
    """The SAVEPOINTs of a transaction on psycopg."""

    def __init__(self, connection: LocalConnection, part: Participant) -> None:
        self.are_open = 0
        self._connection = connection
        self._part = part
        self._made = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Open a SAVEPOINT; an exception rolls it back, with the messages published inside, and is raised again."""
        self._made += 1
        name = f"outbox_{self._made}"
        kept = len(self._part)
        self._connection.execute(f"SAVEPOINT {name}")
        self.are_open += 1
        try:
            yield
        except BaseException:
            self._part.strike(kept)
            self._connection.execute(f"ROLLBACK TO SAVEPOINT {name}")
            raise
        finally:
            self.are_open -= 1
        self._connection.execute(f"RELEASE SAVEPOINT {name}")


@contextmanager
def own_transaction(
    connection: LocalConnection, part: Participant, transaction: HalfTransaction, begin: Callable[[], None]
) -> Iterator[HalfTransaction]:
    """Run a transaction on a psycopg connection: BEGIN, the caller's block, seal, COMMIT, the participant's end."""
    _require_idle(connection)
    with connection.autocommit(on=False):
        sealed = False
        try:
            begin()
            yield transaction
            transaction.is_open = False
            connection.require_healthy(begun=True)
            if len(part):
                part.seal(marked=True)
            sealed = True
            _commit(connection, part)
        except BaseException:
            transaction.is_open = False
            if not part.has_ended:
                _abandon(connection, part, sealed=sealed)
            raise


@contextmanager
def core_transaction(
    connection: Connection, transaction_of: Callable[[], HalfTransaction]
) -> Iterator[HalfTransaction]:
    """Run a transaction on a Core connection of SQLAlchemy, which is handled as a session is."""
    if connection.in_transaction():
        raise UsageError(_IN_TRANSACTION)
    with connection.begin():
        transaction = transaction_of()
        try:
            yield transaction
        finally:
            transaction.is_open = False


@contextmanager
def core_savepoint(connection: Connection) -> Iterator[None]:
    with connection.begin_nested():
        yield


def _require_idle(connection: LocalConnection) -> None:
    if connection.closed:
        raise UsageError("The connection is closed. Open a new one.")
    if connection.status is not TransactionStatus.IDLE:
        raise UsageError(_IN_TRANSACTION)


def _abandon(connection: LocalConnection, part: Participant, *, sealed: bool) -> None:
    """End a transaction after an error from any line (R47); `sealed`: COMMIT may have been sent."""
    if sealed and connection.status is not TransactionStatus.INTRANS:
        part.unknown()
        return
    try:
        connection.roll_back()
    finally:
        part.rolled_back()


def _commit(connection: LocalConnection, part: Participant) -> None:
    transaction_id = part.transaction_id
    try:
        tag = connection.execute(_COMMIT).tag
    except psycopg.Error as error:
        if connection.commit_definitely_failed(error):
            part.rolled_back()
            raise
        part.unknown()
        if not len(part):
            raise  # without messages there is no row to look up the outcome
        raise CommitOutcomeUnknown(
            transaction_id,
            f"COMMIT of transaction {transaction_id} was sent and no reply came. outcome() returns the result.",
        ) from error
    except BaseException:
        part.unknown()
        connection.close()
        raise
    if tag != "COMMIT":
        part.rolled_back()
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
