"""Write the rows of messages: few with an INSERT, many with COPY where the connection can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import PipelineStatus

from outbox._postgres.ddl import written
from outbox._table.insert_connection import CoreConnection, InsertConnection, PsycopgConnection, awaited, core_error
from outbox._table.message_insert import MessageInsert, Statement
from outbox._table.owner_look import OwnerLook
from outbox._table.row_copy import RowCopy
from outbox.errors import TableError
from outbox.message import Message
from outbox.settings import TableNames


class CopyConnection:
    """A connection of psycopg; an async one inside SQLAlchemy's greenlet."""

    def __init__(self, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._driver = driver

    def copy(self, text: str, pieces: Iterable[bytes]) -> int:
        """Run COPY FROM STDIN; return how many rows it has written."""
        if isinstance(self._driver, psycopg.AsyncConnection):
            return awaited(self._copy(self._driver, text, pieces))
        cursor = psycopg.Cursor(self._driver)
        with cursor.copy(text.encode()) as copy:
            for piece in pieces:
                copy.write(piece)
        return cursor.rowcount

    async def _copy(self, driver: psycopg.AsyncConnection[Any], text: str, pieces: Iterable[bytes]) -> int:
        cursor = psycopg.AsyncCursor(driver)
        async with cursor.copy(text.encode()) as copy:
            for piece in pieces:
                await copy.write(piece)
        return cursor.rowcount


class CoreCopyConnection(CopyConnection):
    """A connection of psycopg that SQLAlchemy opened; its errors are SQLAlchemy's."""

    def copy(self, text: str, pieces: Iterable[bytes]) -> int:
        """Run COPY FROM STDIN; return how many rows it has written."""
        try:
            return super().copy(text, pieces)
        except psycopg.Error as error:
            raise core_error(text, error) from error


def copy_connection(connection: InsertConnection) -> CopyConnection | None:
    """Return the same connection for COPY; None if it cannot.

    Django's own errors are made by its cursors, which cannot COPY; nor can a connection in a pipeline.
    """
    driver = connection.driver
    if not isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return None
    if driver.pgconn.pipeline_status != PipelineStatus.OFF:
        return None
    if isinstance(connection, CoreConnection):
        return CoreCopyConnection(driver)
    return CopyConnection(driver) if isinstance(connection, PsycopgConnection) else None


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
