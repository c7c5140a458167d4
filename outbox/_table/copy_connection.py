"""The connections through which table mode can COPY: psycopg's, sync or async, also those of SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus

from outbox._table.insert_connection import CoreConnection, InsertConnection, PsycopgConnection, awaited, core_error


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
