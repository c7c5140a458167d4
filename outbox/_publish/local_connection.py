"""The database connection of a local transaction: psycopg's, sync or async, with one interface for the seal.

For an async connection every call runs in SQLAlchemy's greenlet.
"""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy.util import await_only

from outbox._publish.waiting import BLOCKING, EVENT_LOOP, Waiting
from outbox.errors import UsageError

log = logging.getLogger("outbox")

_DEFINITE = re.compile(r"(?!08|57P0|40003)[0-9A-Z]{5}")
"""SQLSTATEs with which COMMIT definitely failed. Excluded: lost connections (08), a server that shut down (57P0), and
`statement_completion_unknown` (40003), which poolers return."""

Statement = sql.SQL | sql.Composed
NoticeHandler = Callable[[psycopg.errors.Diagnostic], None]


class Result(NamedTuple):
    """The result of a statement."""

    row: tuple[Any, ...] | None
    tag: str | None


class LocalConnection(ABC):
    """A connection of the application, used for one local transaction."""

    waiting: Waiting
    """How to wait for Kafka: in the thread or in the task of this connection."""

    @property
    @abstractmethod
    def driver(self) -> object:
        """The driver's own connection; its identity is that of the database session."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the connection is closed."""

    @property
    @abstractmethod
    def status(self) -> TransactionStatus:
        """Status of the connection's transaction."""

    @abstractmethod
    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Result:
        """Run a statement on a plain cursor; the connection's cursor and row factories belong to the application."""

    @abstractmethod
    def rollback(self) -> None:
        """Send ROLLBACK if a transaction is open."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection at once, without waiting."""

    @abstractmethod
    def listen(self, handler: NoticeHandler) -> None:
        """Add a handler for the server's notices."""

    @abstractmethod
    def unlisten(self, handler: NoticeHandler) -> None:
        """Remove a notice handler."""

    @abstractmethod
    def autocommit(self, *, on: bool) -> AbstractContextManager[None]:
        """Turn autocommit on or off for a block, and restore it afterwards."""

    @property
    def in_block(self) -> bool:
        """Whether a block of psycopg's own `transaction()` is open, whose rollback fires no event.

        Their number is a private attribute; a test fails if it changes.
        """
        return getattr(self.driver, "_num_transactions", 0) > 0

    @property
    def idle(self) -> bool:
        """Whether the connection is open and outside a transaction."""
        return self.status is TransactionStatus.IDLE

    def require_healthy(self, *, begun: bool = True) -> None:
        """Refuse a connection outside a transaction or in a failed one, whose COMMIT would raise no error (R5).

        Args:
            begun: Whether the transaction had begun before; if not, the next statement begins it.
        """
        if self.status is TransactionStatus.INERROR:
            raise UsageError("The local transaction has failed, so nothing was published. Roll it back.")
        if self.status is not TransactionStatus.INTRANS and (begun or not self.idle):
            raise UsageError(
                f"The transaction was ended before COMMIT (status {self.status.name}), so nothing was published. "
                "Leave BEGIN, COMMIT and ROLLBACK to the block or the session."
            )

    def commit_definitely_failed(self, error: BaseException) -> bool:
        """Return whether an error proves that COMMIT failed: the server sent it and the connection is idle (R5)."""
        return (
            isinstance(error, psycopg.Error)
            and error.sqlstate is not None
            and _DEFINITE.fullmatch(error.sqlstate) is not None
            and self.idle
        )

    def roll_back(self) -> bool:
        """Roll back, or close the connection if ROLLBACK fails, so that the transaction cannot commit.

        Returns:
            Whether ROLLBACK was acknowledged.
        """
        finished = False
        try:
            self.rollback()
            finished = True
        except psycopg.Error as error:
            log.warning("Rollback failed, connection closed: %s", type(error).__name__)
        finally:
            if not finished:
                self.close()
        return finished


C = TypeVar("C", psycopg.Connection[Any], psycopg.AsyncConnection[Any])


class _PsycopgConnection(LocalConnection, Generic[C]):
    """The methods that do not wait, common to psycopg's sync and async connections."""

    def __init__(self, connection: C) -> None:
        self._connection: C = connection

    @property
    def driver(self) -> C:
        return self._connection

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def status(self) -> TransactionStatus:
        return self._connection.info.transaction_status

    def listen(self, handler: NoticeHandler) -> None:
        self._connection.add_notice_handler(handler)

    def unlisten(self, handler: NoticeHandler) -> None:
        self._connection.remove_notice_handler(handler)


class BlockingConnection(_PsycopgConnection[psycopg.Connection[Any]]):
    """A `psycopg.Connection`."""

    waiting = BLOCKING

    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Result:
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        cursor.execute(statement, parameters)
        return Result(None if cursor.rownumber is None else cursor.fetchone(), cursor.statusmessage)

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def autocommit(self, *, on: bool) -> Iterator[None]:
        """Turn autocommit on or off for a block, and restore it afterwards."""
        before = self._connection.autocommit
        if before is not on:
            self._connection.autocommit = on
        try:
            yield
        finally:
            if before is not on and not self.closed:
                self._connection.autocommit = before


class AwaitingConnection(_PsycopgConnection[psycopg.AsyncConnection[Any]]):
    """A `psycopg.AsyncConnection`, inside SQLAlchemy's greenlet."""

    waiting = EVENT_LOOP

    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Result:
        return await_only(self._execute(statement, parameters))

    async def _execute(self, statement: Statement, parameters: Sequence[object]) -> Result:
        cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
        await cursor.execute(statement, parameters)
        return Result(None if cursor.rownumber is None else await cursor.fetchone(), cursor.statusmessage)

    def rollback(self) -> None:
        await_only(self._connection.rollback())

    def close(self) -> None:
        """Close the connection without an await, where a second cancellation could interrupt it."""
        self._connection.pgconn.finish()

    @contextmanager
    def autocommit(self, *, on: bool) -> Iterator[None]:
        """Turn autocommit on or off for a block, and restore it afterwards."""
        before = self._connection.autocommit
        try:  # psycopg may suspend after setting it, and a cancellation is raised there
            if before is not on:
                await_only(self._connection.set_autocommit(on))
            yield
        finally:
            if before is not on and not self.closed:
                await_only(self._connection.set_autocommit(before))


def local_connection(driver: object) -> LocalConnection:
    if isinstance(driver, psycopg.Connection):
        return BlockingConnection(driver)
    if isinstance(driver, psycopg.AsyncConnection):
        return AwaitingConnection(driver)
    raise UsageError(
        f"{type(driver).__module__}.{type(driver).__name__} is not supported: the library needs psycopg 3. "
        "Connect with postgresql+psycopg://; publish() of an Outbox, in table mode, takes other drivers."
    )
