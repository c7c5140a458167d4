"""A connection of any driver of SQLAlchemy, whose events report the state of its transaction."""

import inspect
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy.util import await_only

from outbox._publish.local_connection import LocalConnection, NoticeHandler, Result, local_connection
from outbox._publish.waiting import BLOCKING
from outbox.errors import UsageError


class AnyConnection(LocalConnection):
    """A connection of any driver that SQLAlchemy supports, sync or async; itself it reports less than the events."""

    waiting = BLOCKING
    closed = False
    status = TransactionStatus.IDLE
    driver: Any = None

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    @property
    def is_open(self) -> bool:
        """Whether the connection is certainly in a transaction.

        Only sqlite3 in its default mode can report that. With a BEGIN of the application, which SQLAlchemy's manual
        recommends for SAVEPOINTs, and in sqlite3's newer autocommit mode, the next transaction may have begun.
        """
        driver = self.driver
        return (
            isinstance(driver, sqlite3.Connection)
            and driver.in_transaction
            and driver.isolation_level is not None
            and getattr(driver, "autocommit", None) is not False
        )

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Result:
        del statement, parameters
        raise UsageError(
            f"The library runs no statements on a connection of {type(self.driver).__module__}. Use psycopg 3."
        )

    def commit_definitely_failed(self, error: BaseException) -> bool:
        """Return whether COMMIT failed for certain: no reply is lost here, so each error is an answer."""
        return isinstance(error, Exception)

    def call(self, method: str) -> None:
        result = getattr(self.driver, method)()
        if inspect.isawaitable(result):
            await_only(result)

    def rollback(self) -> None:
        self.call("rollback")

    def close(self) -> None:
        self.closed = True
        self.call("close")

    def listen(self, handler: NoticeHandler) -> None:
        """Do nothing: other drivers provide no notices."""

    def unlisten(self, handler: NoticeHandler) -> None:
        """Do nothing: other drivers provide no notices."""

    @contextmanager
    def autocommit(self, *, on: bool) -> Iterator[None]:
        """Leave the mode unchanged."""
        del on
        yield


def memory_connection(driver: object) -> LocalConnection:
    """Wrap a driver's connection: psycopg's as for a real outbox, any other as `AnyConnection`."""
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return local_connection(driver)
    return AnyConnection(driver)
