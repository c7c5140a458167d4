"""Write the rows of messages: few with an INSERT, many with COPY where the connection can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outbox._table.copy_connection import CopyConnection, copy_connection
from outbox._table.insert_connection import InsertConnection
from outbox._table.message_insert import MessageInsert
from outbox._table.owner_look import OwnerLook
from outbox._table.row_copy import RowCopy
from outbox.message import Message
from outbox.settings import TableNames

COPY_ROWS = 100
"""From so many rows on, COPY costs less than an INSERT, although it takes three more round trips."""


class Written(NamedTuple):
    """The rows of messages.

    Args:
        ids: Their ids, in the order of the messages.
        xid: The xid of the local transaction, as text.
        started_us: Its start, microseconds since 1970.
    """

    ids: Sequence[int]
    xid: str
    started_us: int


class RowWriter:
    """Writes messages into a message table.

    Args:
        names: Schema and name prefix of the tables.
        group: Producer group.
        look: Looks whether a relay delivers the table.
    """

    def __init__(self, names: TableNames, group: str, look: OwnerLook) -> None:
        self._look = look
        self._insert = MessageInsert(names, group)
        self._copy = RowCopy(names, group)

    def write(self, connection: InsertConnection, messages: Sequence[Message]) -> Written:
        """Write messages in order.

        Args:
            connection: The connection; a transaction begins if none is open.
            messages: From 1 to `MAX_ROWS` messages.
        """
        if len(messages) >= COPY_ROWS and (copying := copy_connection(connection)) is not None:
            # Also begins the transaction, of which SQLAlchemy would not be aware otherwise.
            ((is_allowed,),) = connection.run(self._copy.allowed)
            if is_allowed:
                return self._copied(connection, copying, messages)
        insert = self._insert.of(messages, numbered=connection.numbered, more=self._look.column())
        rows = connection.run(insert)
        _, xid, started_us, *seen = rows[0]
        self._saw(seen)
        return Written(sorted(row[0] for row in rows), xid, started_us)  # they were given in the order of the messages

    def _copied(self, connection: InsertConnection, copying: CopyConnection, messages: Sequence[Message]) -> Written:
        copying.copy(self._copy.text, self._copy.pieces(messages))
        ((ids, xid, started_us, *seen),) = connection.run(self._copy.newest(len(messages), self._look.column()))
        self._saw(seen)
        return Written(sorted(ids), xid, started_us)

    def _saw(self, seen: Sequence[bool | int | None]) -> None:
        if seen:
            self._look.saw(*seen)
