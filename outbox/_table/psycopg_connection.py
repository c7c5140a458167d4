"""The connections of psycopg through which table mode inserts rows, imported where an application has one."""

from collections.abc import Iterable
from typing import Any, Self

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy.exc import DBAPIError

from outbox._table.insert_connection import Rows, awaited
from outbox._table.message_insert import Statement


class PsycopgConnection:
    """A connection of psycopg, sync or async; an async one inside SQLAlchemy's greenlet.

    It uses plain cursors: the connection's own factories belong to the application.
    """

    numbered = False

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self.driver = connection

    @property
    def autocommits(self) -> bool:
        return self.driver.autocommit

    @property
    def in_transaction(self) -> bool:
        return self.driver.info.transaction_status is not TransactionStatus.IDLE

    @property
    def copying(self) -> Self | None:
        return self if self.driver.pgconn.pipeline_status == PipelineStatus.OFF else None

    def run(self, statement: Statement) -> Rows:
        """Run a statement and return its rows."""
        if isinstance(self.driver, psycopg.AsyncConnection):
            return awaited(self._run(self.driver, statement))
        cursor = psycopg.Cursor(self.driver, row_factory=tuple_row)
        return cursor.execute(statement.text.encode(), statement.parameters).fetchall()

    async def _run(self, connection: psycopg.AsyncConnection[Any], statement: Statement) -> Rows:
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        await cursor.execute(statement.text.encode(), statement.parameters)
        return await cursor.fetchall()

    def copy(self, text: str, pieces: Iterable[bytes]) -> int:
        """Run COPY FROM STDIN; return how many rows it has written."""
        if isinstance(self.driver, psycopg.AsyncConnection):
            return awaited(self._copy(self.driver, text, pieces))
        cursor = psycopg.Cursor(self.driver)
        with cursor.copy(text.encode()) as copy:
            for piece in pieces:
                copy.write(piece)
        return cursor.rowcount

    async def _copy(self, connection: psycopg.AsyncConnection[Any], text: str, pieces: Iterable[bytes]) -> int:
        cursor = psycopg.AsyncCursor(connection)
        async with cursor.copy(text.encode()) as copy:
            for piece in pieces:
                await copy.write(piece)
        return cursor.rowcount

    def roll_back(self) -> None:
        """Roll the transaction back."""
        if isinstance(self.driver, psycopg.AsyncConnection):
            awaited(self.driver.rollback())
        else:
            self.driver.rollback()


class CorePsycopgConnection(PsycopgConnection):
    """A connection of psycopg that SQLAlchemy opened; its errors are SQLAlchemy's."""

    def run(self, statement: Statement) -> Rows:
        try:
            return super().run(statement)
        except psycopg.Error as error:
            raise DBAPIError.instance(statement.text, None, error, psycopg.Error) from error

    def copy(self, text: str, pieces: Iterable[bytes]) -> int:
        try:
            return super().copy(text, pieces)
        except psycopg.Error as error:
            raise DBAPIError.instance(text, None, error, psycopg.Error) from error
