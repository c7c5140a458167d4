"""A connection of any driver, for outboxes that run no SQL of their own."""

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
    """A connection of whatever driver SQLAlchemy has, sync or async.

    How its transaction goes is SQLAlchemy's to tell, by its events. Drivers know less: sqlite3 says that it is in no
    transaction until the first change of a row.

    Args:
        driver: The driver's own connection; an async one only in SQLAlchemy's greenlet.
    """

    waiting = BLOCKING

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._closed = False

    @property
    def driver(self) -> object:
        """The driver's own connection."""
        return self._driver

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return self._closed

    @property
    def status(self) -> TransactionStatus:
        """Never a contradiction to what SQLAlchemy tells."""
        return TransactionStatus.IDLE

    @property
    def is_open(self) -> bool:
        """Whether it is certain that it is in a transaction.

        Only sqlite3 as it comes can tell. With a BEGIN of the user's own, as SQLAlchemy's manual has it for SAVEPOINTs,
        and in sqlite3's newer mode, it may already be the next transaction.
        """
        driver = self._driver
        return (
            isinstance(driver, sqlite3.Connection)
            and driver.in_transaction
            and driver.isolation_level is not None
            and getattr(driver, "autocommit", None) is not False
        )

    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Result:
        """Refused.

        Raises:
            UsageError: Always: only on psycopg does the library run statements of its own.
        """
        del statement, parameters
        raise UsageError(f"a connection of {type(self._driver).__module__} runs no statements of the library's")

    def commit_definitely_failed(self, error: BaseException) -> bool:
        """Whether nothing was committed: no reply is ever lost here, so each error is an answer."""
        return isinstance(error, Exception)

    def commit(self) -> None:
        """COMMIT, if it is in a transaction."""
        self._call("commit")

    def rollback(self) -> None:
        """ROLLBACK, if it is in a transaction."""
        self._call("rollback")

    def close(self) -> None:
        """Close it."""
        self._closed = True
        self._call("close")

    def _call(self, method: str) -> None:
        result = getattr(self._driver, method)()
        if inspect.isawaitable(result):
            await_only(result)

    def listen(self, handler: NoticeHandler) -> None:
        """Nothing: other drivers hand on no notices."""

    def unlisten(self, handler: NoticeHandler) -> None:
        """Nothing, likewise."""

    def autocommit(self, *, on: bool) -> AbstractContextManager[None]:
        """As it is."""
        del on
        return nullcontext()


def commit_now(connection: LocalConnection) -> None:
    """COMMIT, behind SQLAlchemy's back: for a test in which its reply gets lost."""
    if isinstance(connection, AnyConnection):
        connection.commit()
    else:
        connection.execute(sql.SQL("COMMIT"))
