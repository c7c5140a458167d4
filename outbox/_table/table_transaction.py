"""`outbox.transaction(connection)` in table mode: the library sends BEGIN and COMMIT, the rows need nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from sqlalchemy.engine import Connection

from outbox._publish.local_connection import local_connection
from outbox._publish.own_transaction import Savepoints, core_savepoint, core_transaction, own_transaction
from outbox._table.insert_connection import CoreConnection, InsertConnection, insert_connection
from outbox.errors import UsageError
from outbox.message import Message
from outbox.transaction import Receipt, Transaction

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
