"""The database connection of a local transaction, as the seal sees it: psycopg's, sync or async.

For an async one every call runs in SQLAlchemy's greenlet, so that the seal is written once.
"""

from __future__ import annotations

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
"""SQLSTATEs with which COMMIT definitely failed: not a lost connection, not a server that was shut down, and not
`statement_completion_unknown`, as poolers say it."""

Statement = sql.SQL | sql.Composed
NoticeHandler = Callable[[psycopg.errors.Diagnostic], None]


class Result(NamedTuple):
    """What a statement gave.

    Args:
        row: Its first row.
        tag: Its command tag.
    """

    row: tuple[Any, ...] | None
    tag: str | None


class LocalConnection(ABC):
    """A connection of the application's, lent for one local transaction."""

    waiting: Waiting
    """How to wait for Kafka on behalf of this connection."""

    @property
    @abstractmethod
    def driver(self) -> object:
        """The driver's own connection: whoever holds the same object holds the same connection."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether it is closed."""

    @property
    @abstractmethod
    def status(self) -> TransactionStatus:
        """Where it stands with its transaction."""

    @abstractmethod
    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Result:
        """Run a statement on a plain cursor: the connection's own factories of cursors and rows are the user's."""

    @abstractmethod
    def rollback(self) -> None:
        """ROLLBACK, if it is in a transaction."""

    @abstractmethod
    def close(self) -> None:
        """Close it at once, without waiting for anything."""

    @abstractmethod
    def listen(self, handler: NoticeHandler) -> None:
        """Hand the server's notices to a handler."""

    @abstractmethod
    def unlisten(self, handler: NoticeHandler) -> None:
        """No longer."""

    @abstractmethod
    def autocommit(self, *, on: bool) -> AbstractContextManager[None]:
        """For a while, in autocommit or not; outside it, psycopg begins transactions as the connection was told."""

    @property
    def in_block(self) -> bool:
        """Whether a block of psycopg's own `transaction()` is open, of whose rollback nobody tells.

        How many there are is a private attribute; a test would notice if it went.
        """
        return getattr(self.driver, "_num_transactions", 0) > 0

    @property
    def idle(self) -> bool:
        """Whether it is open and in no transaction."""
        return self.status is TransactionStatus.IDLE

    def require_healthy(self, *, begun: bool = True) -> None:
        """Refuse a connection that is not inside a healthy transaction: its COMMIT could say yes and mean no (R5).

        Args:
            begun: Whether the transaction had begun before; if not, the next statement begins it.

        Raises:
            UsageError: It is outside a transaction, or in a failed one.
        """
        if self.status is TransactionStatus.INERROR:
            raise UsageError("the local transaction has failed: roll it back, nothing was published")
        if self.status is not TransactionStatus.INTRANS and (begun or not self.idle):
            raise UsageError(
                f"the connection is no longer in its transaction ({self.status.name}): something ended it before "
                "COMMIT, nothing was published; leave BEGIN, COMMIT and ROLLBACK to the block or the session"
            )

    def commit_definitely_failed(self, error: BaseException) -> bool:
        """Whether an error of COMMIT says that nothing was committed: the server said so, and is still there (R5)."""
        return (
            isinstance(error, psycopg.Error)
            and error.sqlstate is not None
            and _DEFINITE.fullmatch(error.sqlstate) is not None
            and self.idle
        )

    def roll_back(self) -> bool:
        """Roll back for sure, so that nobody can commit what failed: if ROLLBACK does not work, close the connection.

        Returns:
            Whether the ROLLBACK was acknowledged.
        """
        finished = False
        try:
            self.rollback()
            finished = True
        except psycopg.Error as error:
            log.warning("rolling back failed, the connection is closed: %s", type(error).__name__)
        finally:
            if not finished:
                self.close()
        return finished


C = TypeVar("C", psycopg.Connection[Any], psycopg.AsyncConnection[Any])


class _PsycopgConnection(LocalConnection, Generic[C]):
    """What psycopg's two kinds of connection have in common: everything that never waits."""

    def __init__(self, connection: C) -> None:
        self._connection: C = connection

    @property
    def driver(self) -> C:
        """The connection."""
        return self._connection

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._connection.closed

    @property
    def status(self) -> TransactionStatus:
        """Where it stands with its transaction."""
        return self._connection.info.transaction_status

    def listen(self, handler: NoticeHandler) -> None:
        """Hand notices to a handler."""
        self._connection.add_notice_handler(handler)

    def unlisten(self, handler: NoticeHandler) -> None:
        """No longer."""
        self._connection.remove_notice_handler(handler)


class BlockingConnection(_PsycopgConnection[psycopg.Connection[Any]]):
    """A `psycopg.Connection`."""

    waiting = BLOCKING

    def execute(self, statement: Statement, parameters: Sequence[object] = ()) -> Result:
        """Run a statement."""
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        cursor.execute(statement, parameters)
        return Result(None if cursor.rownumber is None else cursor.fetchone(), cursor.statusmessage)

    def rollback(self) -> None:
        """ROLLBACK."""
        self._connection.rollback()

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    @contextmanager
    def autocommit(self, *, on: bool) -> Iterator[None]:
        """For a while, in autocommit or not."""
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
        """Run a statement."""
        return await_only(self._execute(statement, parameters))

    async def _execute(self, statement: Statement, parameters: Sequence[object]) -> Result:
        cursor = psycopg.AsyncCursor(self._connection, row_factory=tuple_row)
        await cursor.execute(statement, parameters)
        return Result(None if cursor.rownumber is None else await cursor.fetchone(), cursor.statusmessage)

    def rollback(self) -> None:
        """ROLLBACK."""
        await_only(self._connection.rollback())

    def close(self) -> None:
        """Close it without an await: that would meet the second cancellation, too."""
        self._connection.pgconn.finish()

    @contextmanager
    def autocommit(self, *, on: bool) -> Iterator[None]:
        """For a while, in autocommit or not."""
        before = self._connection.autocommit
        try:  # psycopg may pause once it is set: a cancellation meets us there
            if before is not on:
                await_only(self._connection.set_autocommit(on))
            yield
        finally:
            if before is not on and not self.closed:
                await_only(self._connection.set_autocommit(before))


def local_connection(driver: object) -> LocalConnection:
    """The connection of a driver.

    Raises:
        UsageError: It is not psycopg's.
    """
    if isinstance(driver, psycopg.Connection):
        return BlockingConnection(driver)
    if isinstance(driver, psycopg.AsyncConnection):
        return AwaitingConnection(driver)
    raise UsageError(
        f"{type(driver).__module__}.{type(driver).__name__} cannot be used here: the library needs psycopg 3 "
        "(postgresql+psycopg://), or where it asks for a database an engine"
    )
