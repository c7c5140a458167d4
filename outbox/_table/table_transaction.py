"""`outbox.transaction(connection)` in table mode: the library sends BEGIN and COMMIT, the rows need nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy.engine import Connection

from outbox._publish.draft import Draft
from outbox._publish.local_connection import LocalConnection, local_connection
from outbox._receipts import Receipt
from outbox._table.insert_connection import CoreConnection, InsertConnection, insert_connection
from outbox._table.table_publisher import TablePublisher
from outbox._table.table_sender import needs_halves
from outbox.errors import UsageError
from outbox.message import Message
from outbox.transaction import Transaction, known_id

_ENDED = (
    "The transaction was ended inside the block. "
    "Leave COMMIT and ROLLBACK to outbox.transaction(), which sends them at the end of the block."
)


class RowDraft(Draft):
    """Counts the messages of a transaction; the messages themselves are rows. The first one gives it its id."""

    def __init__(self) -> None:
        super().__init__("")
        self._count = 0

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._count

    def note(self, receipt: Receipt) -> None:
        """Count a message."""
        if self.transaction_id not in {"", receipt.transaction_id}:
            raise UsageError(_ENDED)
        self.transaction_id, self.end = receipt.transaction_id, receipt.end
        self._count += 1

    def strike(self, keep: int) -> None:
        """Count the first `keep` messages only: Postgres removes the rows of a SAVEPOINT that is rolled back."""
        self._count = keep


class RowParticipant:
    """The participant of an outbox in one local transaction, in table mode."""

    writes_rows = True

    def __init__(self, publisher: TablePublisher, connection: LocalConnection) -> None:
        self._rows = RowDraft()
        self.draft: Draft = self._rows
        self._publisher = publisher
        self._connection: InsertConnection = insert_connection(connection.driver)

    def publish(self, message: Message, *, eager: bool) -> Receipt:
        """Insert the row of a message.

        Args:
            eager: Ignored: the row is always written now.
        """
        del eager
        (receipt,) = self._publisher.insert(self._connection, [message])
        self._rows.note(receipt)
        return receipt

    def acknowledged_half(self) -> tuple[int, int]:
        """Refuse: there are no halves."""
        raise needs_halves("store_half()")

    def seal(self, *, marked: bool = False) -> None:
        """Do nothing: the rows are written."""
        del marked

    def has_row(self, *, presumed: bool) -> bool | None:
        """Return the presumed answer."""
        return presumed

    def committed(self) -> bool:
        """Mark the transaction as committed."""
        self.draft.end.committed()
        return True

    def rolled_back(self, reason: str) -> None:
        """Mark the transaction as rolled back."""
        self.draft.end.rolled_back(reason)

    def unknown(self) -> None:
        """Mark the outcome of COMMIT as unknown."""
        self.draft.end.unknown()


class RowStarter:
    """Creates the participants of one outbox on connections of psycopg, in table mode."""

    def __init__(self, publisher: TablePublisher) -> None:
        self._publisher = publisher

    def connection(self, driver: object) -> LocalConnection:
        """Wrap a connection of psycopg."""
        return local_connection(driver)

    def start(self, connection: LocalConnection) -> RowParticipant:
        """Create a participant in the connection's transaction."""
        return RowParticipant(self._publisher, connection)


class CoreRowTransaction(Transaction):
    """A transaction on a Core connection of SQLAlchemy, in table mode.

    Args:
        connection: The connection, in its transaction.
    """

    def __init__(self, publisher: TablePublisher, connection: Connection) -> None:
        super().__init__(eager=False)
        self._publisher = publisher
        self._connection = connection
        self._inserts = CoreConnection(connection)
        self._rows = RowDraft()

    @property
    def transaction_id(self) -> str:
        """Id of the transaction, a UUIDv7."""
        return known_id(self._rows.transaction_id)

    def _publish(self, message: Message, *, eager: bool) -> Receipt:
        del eager
        (receipt,) = self._publisher.insert(self._inserts, [message])
        self._rows.note(receipt)
        return receipt

    def savepoint(self) -> AbstractContextManager[None]:
        """Open a SAVEPOINT; an exception rolls it back, with the messages published inside, and is raised again."""
        return self._savepoint()

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        with self._connection.begin_nested():
            yield


@contextmanager
def core_row_transaction(publisher: TablePublisher, connection: Connection) -> Iterator[Transaction]:
    """Run a transaction on a Core connection of SQLAlchemy."""
    if connection.in_transaction():
        raise UsageError(
            "The connection is already in a transaction. Commit it or roll it back first: "
            "outbox.transaction() sends BEGIN and COMMIT itself."
        )
    with connection.begin():
        transaction = CoreRowTransaction(publisher, connection)
        try:
            yield transaction
        finally:
            transaction.is_open = False
