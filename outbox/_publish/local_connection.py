"""The database connection of a local transaction: psycopg's, sync or async, with one interface for the seal."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy.util import await_only

from outbox._publish.waiting import BLOCKING, EVENT_LOOP, Waiting
from outbox.errors import UsageError

log = logging.getLogger("outbox")

_DEFINITE = re.compile(r"(?!08|57P0|40003)[0-9A-Z]{5}")
"""SQLSTATEs with which COMMIT definitely failed. Excluded: lost connections (08), a server that shut down (57P0), and
`statement_completion_unknown` (40003), which poolers return."""

NoticeHandler = Callable[[psycopg.errors.Diagnostic], None]


class Result(NamedTuple):
    """The result of a statement."""

    row: tuple[Any, ...] | None
    tag: str | None


class LocalConnection:
    """A connection of the application, used for one local transaction; an async one inside SQLAlchemy's greenlet.

    Args:
        driver: psycopg's own connection; its identity is that of the database session.
    """

    waiting: Waiting
    """How to wait for Kafka: in the thread or in the task of this connection."""

    def __init__(self, driver: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self.driver: Any = driver
        self._is_async = isinstance(driver, psycopg.AsyncConnection)
        self.waiting = EVENT_LOOP if self._is_async else BLOCKING

    def _done(self, call: Any) -> Any:
        """Return what a call of psycopg returns, which is awaited first if the connection is an async one."""
        return await_only(call) if self._is_async else call

    @property
    def closed(self) -> bool:
        return bool(self.driver.closed)

    @property
    def status(self) -> TransactionStatus:
        found: TransactionStatus = self.driver.info.transaction_status
        return found

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> Result:
        """Run a statement on a plain cursor; the connection's cursor and row factories belong to the application."""
        kind: Any = psycopg.AsyncCursor if self._is_async else psycopg.Cursor
        cursor = kind(self.driver, row_factory=tuple_row)
        self._done(cursor.execute(statement, parameters))
        return Result(None if cursor.rownumber is None else self._done(cursor.fetchone()), cursor.statusmessage)

    def rollback(self) -> None:
        """Send ROLLBACK if a transaction is open."""
        self._done(self.driver.rollback())

    def close(self) -> None:
        """Close the connection at once: without an await, where a second cancellation could interrupt it."""
        if self._is_async:
            self.driver.pgconn.finish()
        else:
            self.driver.close()

    def listen(self, handler: NoticeHandler) -> None:
        """Add a handler for the server's notices."""
        self.driver.add_notice_handler(handler)

    def unlisten(self, handler: NoticeHandler) -> None:
        self.driver.remove_notice_handler(handler)

    @contextmanager
    def autocommit(self, *, on: bool) -> Iterator[None]:
        """Turn autocommit on or off for a block, and restore it afterwards."""
        before = self.driver.autocommit
        try:  # psycopg may suspend after setting it, and a cancellation is raised there
            if before is not on:
                self._done(self.driver.set_autocommit(on))
            yield
        finally:
            if self.driver.autocommit is not before and not self.closed:
                self._done(self.driver.set_autocommit(before))

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
        """Roll back, and return whether that was acknowledged; else close the connection, so that it cannot commit."""
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


def local_connection(driver: object) -> LocalConnection:
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return LocalConnection(driver)
    raise UsageError(
        f"{type(driver).__module__}.{type(driver).__name__} is not supported: the library needs psycopg 3. "
        "Connect with postgresql+psycopg://; publish() of an Outbox, in table mode, takes other drivers."
    )
