"""A connection of any driver, for outboxes that run no SQL."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from psycopg import sql
from psycopg.pq import TransactionStatus
from sqlalchemy.util import await_only

from outbox._publish.local_connection import LocalConnection, NoticeHandler, Result, Statement
from outbox._publish.waiting import BLOCKING
from outbox.errors import UsageError


class AnyConnection(LocalConnection):
    """A connection of any driver that SQLAlchemy supports, sync or async.

    SQLAlchemy's events report the state of its transaction. Drivers report less: sqlite3 reports no transaction until
    the first change of a row.
    """

    waiting = BLOCKING

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._closed = False

    @property
    def driver(self) -> object:
        return self._driver

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def status(self) -> TransactionStatus:
        """Always IDLE: SQLAlchemy's events report the state."""
        return TransactionStatus.IDLE

    @property
    def is_open(self) -> bool:
        """Whether the connection is certainly in a transaction.

        Only sqlite3 in its default mode can report that. With a BEGIN of the application, which SQLAlchemy's manual
        recommends for SAVEPOINTs, and in sqlite3's newer autocommit mode, the next transaction may have begun.
        """
        driver = self._driver
        return (
            isinstance(driver, sqlite3.Connection)
            and driver.in_transaction
            and driver.isolation_level is not None
            and getattr(driver, "autocommit", None) is not False
        )

    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Result:
        del statement, parameters
        raise UsageError(
            f"The library runs no statements on a connection of {type(self._driver).__module__}. Use psycopg 3."
        )

    def commit_definitely_failed(self, error: BaseException) -> bool:
        """Return whether COMMIT failed for certain: no reply is lost here, so each error is an answer."""
        return isinstance(error, Exception)

    def commit(self) -> None:
        self._call("commit")

    def rollback(self) -> None:
        self._call("rollback")

    def close(self) -> None:
        self._closed = True
        self._call("close")

    def _call(self, method: str) -> None:
        result = getattr(self._driver, method)()
        if inspect.isawaitable(result):
            await_only(result)

    def listen(self, handler: NoticeHandler) -> None:
        """Do nothing: other drivers provide no notices."""

    def unlisten(self, handler: NoticeHandler) -> None:
        """Do nothing: other drivers provide no notices."""

    def autocommit(self, *, on: bool) -> AbstractContextManager[None]:
        """Leave the mode unchanged."""
        del on
        return nullcontext()


def commit_now(connection: LocalConnection) -> None:
    """Send COMMIT without SQLAlchemy's events, to simulate that its reply is lost."""
    if isinstance(connection, AnyConnection):
        connection.commit()
    else:
        connection.execute(sql.SQL("COMMIT"))
