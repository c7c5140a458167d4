"""The connections through which table mode inserts rows: SQLAlchemy's, and those of each driver of Postgres.

The library never begins or ends a transaction here: the caller's transaction carries the rows.
"""

import warnings
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any, Protocol, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.util import await_only

from outbox._postgres.optional_packages import is_psycopg
from outbox._publish.session_connection import driver_of
from outbox._table.message_insert import Statement
from outbox.errors import UsageError

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]

_IDLE = 0
"""The transaction status of psycopg2 outside a transaction."""


class DbapiConnection(Protocol):
    """A connection of a driver for Postgres (PEP 249), of Django too."""

    def cursor(self) -> Any:
        """Return a new cursor."""

    def commit(self) -> Any:
        """Commit the transaction."""


class DbapiCursor(Protocol):
    """A cursor of such a connection."""

    def execute(self, query: Any, params: Any = ..., /) -> Any:
        """Run a statement."""

    def fetchall(self) -> Any:
        """Return all rows."""


class AsyncDriverConnection(Protocol):
    """An async connection of psycopg or asyncpg."""

    async def execute(self, query: Any, /, *args: Any, **options: Any) -> Any:
        """Run a statement."""

    async def close(self) -> None:
        """Close the connection."""


class InsertConnection(Protocol):
    """A connection that can insert rows."""

    numbered: bool
    """Whether its placeholders are `$1`, `$2` and so on, instead of `%s`."""

    @property
    def driver(self) -> object:
        """The driver's own connection."""

    @property
    def autocommits(self) -> bool:
        """Whether a statement outside a transaction commits itself."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open for certain."""

    @property
    def copying(self) -> "CopyConnection | None":
        """The connection for COPY; None if it cannot, as in a pipeline."""

    def run(self, statement: Statement) -> Rows:
        """Run a statement and return its rows."""

    def roll_back(self) -> None:
        """Roll the transaction back."""


class CopyConnection(InsertConnection, Protocol):
    """A connection that can also copy rows."""

    def copy(self, text: str, pieces: Iterable[bytes]) -> int:
        """Run COPY FROM STDIN; return how many rows it has written."""


class CoreConnection:
    """A `Connection` of SQLAlchemy on any driver, inside SQLAlchemy's greenlet if it is an async one."""

    def __init__(self, connection: Connection) -> None:
        if connection.dialect.name != "postgresql":
            raise UsageError(
                f"The connection's database is {connection.dialect.name}. Table mode needs Postgres: publish on a "
                "connection to the database with the message table."
            )
        self._connection = connection
        self.numbered = connection.dialect.driver == "asyncpg"

    @cached_property
    def driver(self) -> Any:
        return driver_of(self._connection.connection.dbapi_connection)

    @property
    def autocommits(self) -> bool:
        return getattr(self._connection.connection.dbapi_connection, "autocommit", False) is True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open; in AUTOCOMMIT SQLAlchemy's transactions are none."""
        return self._connection.in_transaction() and not self.autocommits

    def run(self, statement: Statement) -> Rows:
        """Run a statement; SQLAlchemy begins a transaction if none is open.

        In an open one of psycopg it runs on the driver's connection: SQLAlchemy's result takes as long as the INSERT.
        """
        driver = self._psycopg
        if driver is not None and self._connection.in_transaction() and driver.in_transaction:
            return driver.run(statement)
        return self._connection.exec_driver_sql(statement.text, statement.parameters).fetchall()

    @property
    def copying(self) -> CopyConnection | None:
        return self._psycopg and self._psycopg.copying

    @cached_property
    def _psycopg(self) -> CopyConnection | None:
        if not is_psycopg(self.driver, "Connection", "AsyncConnection"):
            return None
        from outbox._table.psycopg_connection import CorePsycopgConnection  # noqa: PLC0415 - it may be missing

        return CorePsycopgConnection(self.driver)

    def roll_back(self) -> None:
        self._connection.rollback()


class AsyncpgConnection:
    """A connection of asyncpg, or what its pool returns, inside SQLAlchemy's greenlet."""

    numbered = True
    autocommits = True
    copying = None

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.driver: object = getattr(connection, "_con", connection)  # a pool hands out proxies

    @property
    def in_transaction(self) -> bool:
        if self._connection.is_closed():
            raise UsageError("The connection is closed. Open a new one.")
        return bool(self._connection.is_in_transaction())

    def run(self, statement: Statement) -> Rows:
        rows: Rows = awaited(self._connection.fetch(statement.text, *statement.parameters))
        return rows

    def roll_back(self) -> None:
        """Do nothing: outside a transaction each statement ends by itself."""


class AnyDbapiConnection:
    """A connection of another driver with placeholders `%s`: psycopg2, pg8000."""

    numbered = False
    copying = None  # nor of Django, whose cursors make its own errors, and cannot COPY

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def driver(self) -> object:
        return self._connection

    @property
    def autocommits(self) -> bool:
        return getattr(self._connection, "autocommit", False) is True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open; False if the driver does not report it."""
        return self._status() is True

    def _status(self) -> bool | None:
        status = getattr(self._connection, "get_transaction_status", None)  # psycopg2
        if status is not None:
            return bool(status() != _IDLE)
        return getattr(self._connection, "_in_transaction", None)  # pg8000

    def run(self, statement: Statement) -> Rows:
        """Run a statement on a cursor of its own."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement.text, statement.parameters)
            return [tuple(row.values()) if isinstance(row, Mapping) else row for row in cursor.fetchall()]

    def roll_back(self) -> None:
        """Roll the transaction back, unless it may be the caller's: the driver does not report whether one was open."""
        if self._status() is not None:
            self._connection.rollback()


class DjangoConnection(AnyDbapiConnection):
    """A connection of Django, such as `django.db.connection`. It runs statements through Django's own cursor."""

    @property
    def driver(self) -> object:
        """The driver's own connection; `django.db.connection` is one object for all threads."""
        if self._connection.in_atomic_block and self._connection.vendor != "postgresql":
            raise UsageError(f"Database {self._connection.vendor}: table mode needs Postgres, or captured_messages().")
        self._connection.ensure_connection()
        return self._connection.connection

    @property
    def autocommits(self) -> bool:
        return bool(self._connection.get_autocommit()) or self._is_of_a_test

    @property
    def _is_of_a_test(self) -> bool:
        """Whether only the transaction of a `TestCase` is open: as in production, code under test is outside one."""
        blocks = self._connection.atomic_blocks
        return bool(blocks) and blocks[-1]._from_testcase  # noqa: SLF001 - as atomic(durable=True) asks

    @property
    def in_transaction(self) -> bool:
        """Whether a block of `transaction.atomic()` is open, or a transaction with Django's autocommit off."""
        is_open = self._connection.in_atomic_block
        return not self._is_of_a_test if is_open else insert_connection(self.driver).in_transaction

    def roll_back(self) -> None:
        self._connection.rollback()


def insert_connection(given: Any) -> InsertConnection:
    """Wrap what an application has: a connection of SQLAlchemy, Django or a driver, or a cursor of one."""
    if isinstance(given, Connection):
        return CoreConnection(given)
    if is_psycopg(given, "Connection", "AsyncConnection"):
        from outbox._table.psycopg_connection import PsycopgConnection  # noqa: PLC0415 - it may be missing

        return PsycopgConnection(given)
    if is_async_connection(given):
        return AsyncpgConnection(given)
    if hasattr(given, "in_atomic_block"):
        return DjangoConnection(given)
    if hasattr(given, "cursor") and hasattr(given, "commit"):
        return AnyDbapiConnection(given)
    if hasattr(given, "execute") and hasattr(given, "fetchall"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pg8000 warns that its cursors have this attribute by courtesy only
            return insert_connection(given.connection)
    raise UsageError(
        f"{type(given).__module__}.{type(given).__name__} is no connection that can be used here. Give a session (to "
        "outcome() an engine), or a connection to Postgres of SQLAlchemy, Django, psycopg, psycopg2 or pg8000; to "
        "AsyncOutbox and once_async() an async one, also of asyncpg. Of a pool give a connection that it hands out."
    )


def is_async_connection(given: object) -> bool:
    if is_psycopg(given, "AsyncConnection"):
        return True
    return type(given).__module__.partition(".")[0] == "asyncpg" and hasattr(given, "is_in_transaction")


def require_transaction(connection: InsertConnection, what: str = "the message") -> None:
    """Refuse a connection on which the statement would commit alone."""
    if connection.autocommits and not connection.in_transaction:
        raise UsageError(
            f"The connection is in autocommit and outside a transaction, so {what} would be committed alone. Do it "
            "inside the transaction of the business change: connection.transaction(), transaction.atomic(), or "
            "autocommit turned off."
        )


def awaited(waiting: Awaitable[T]) -> T:
    """Wait in SQLAlchemy's greenlet."""
    try:
        return await_only(waiting)
    except MissingGreenlet:
        if hasattr(waiting, "close"):
            waiting.close()
        raise UsageError("The connection is an async one. Use AsyncOutbox.") from None
