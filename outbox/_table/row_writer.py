"""Write the rows of messages: few with an INSERT, many with COPY where the connection can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from outbox._postgres.ddl import written
from outbox._table.copy_connection import CopyConnection, copy_connection
from outbox._table.insert_connection import InsertConnection
from outbox._table.message_insert import MessageInsert, Statement
from outbox._table.owner_look import OwnerLook
from outbox._table.row_copy import RowCopy
from outbox.errors import TableError
from outbox.message import Message
from outbox.settings import TableNames

COPY_ROWS = 100
"""From so many rows on, COPY costs less than an INSERT, although it takes three more round trips."""


class Written(NamedTuple):
    """The rows of messages.

    Args:
        ids: Their ids, in the order of the messages, which is that in which they were given.
    """

    ids: Sequence[int]
    xid: str
    started_us: int


class RowWriter:
    """Writes messages into a message table."""

    def __init__(self, names: TableNames, service: str, look: OwnerLook) -> None:
        self._look = look
        self._insert = MessageInsert(names, service)
        self._copy = RowCopy(names, service)
        self._table = written(names.schema, names.message)
        self._fail = Statement("SELECT CAST('outbox: a trigger dropped or added rows of messages' AS integer)", ())

    def write(self, connection: InsertConnection, messages: Sequence[Message]) -> Written:
        """Write messages in order.

        Args:
            connection: The connection; a transaction begins if none is open.
            messages: From 1 to `MAX_ROWS` messages.
        """
        if len(messages) >= COPY_ROWS and (copying := copy_connection(connection)) is not None:
            # Also begins the transaction, of which SQLAlchemy would not be aware otherwise.
            ((last,),) = connection.run(self._copy.last)
            if last is not None:
                return self._copied(connection, copying, messages, int(last))
        insert = self._insert.of(messages, numbered=connection.numbered, more=self._look.column())
        rows = connection.run(insert)
        self._require(connection, len(messages), len(rows))
        _, xid, started_us, *seen = rows[0]
        self._look.saw(*seen)
        return _written([row[0] for row in rows], xid, started_us)

    def _copied(
        self, connection: InsertConnection, copying: CopyConnection, messages: Sequence[Message], last: int
    ) -> Written:
        copied = copying.copy(self._copy.text, self._copy.pieces(messages))
        ((ids, xid, started_us, *seen),) = connection.run(self._copy.after(last, self._look.column()))
        found = [] if ids is None else ids.split(",")
        self._require(connection, len(messages), copied, len(found))
        self._look.saw(*seen)
        return _written(found, xid, started_us)

    def _require(self, connection: InsertConnection, messages: int, *counts: int) -> None:
        """Let the transaction fail unless each count of rows is that of the messages: who goes on must not commit."""
        if all(count == messages for count in counts):
            return
        try:
            connection.run(self._fail)
        except Exception as error:
            raise TableError(
                f"{messages} messages were to be rows of {self._table}, and {' and '.join(map(str, counts))} rows were "
                "counted: a trigger of the table drops or adds rows. The transaction has failed, and can only be "
                "rolled back. Let the trigger leave the table's rows alone."
            ) from error


def _written(ids: Iterable[Any], xid: Any, started_us: Any) -> Written:
    """Return what came as text; where the database has no encoding, a driver gives bytes."""
    return Written(sorted(map(int, ids)), str(int(xid)), int(started_us))
