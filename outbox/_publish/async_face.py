"""What both outboxes for asyncio have. They run the blocking implementation in SQLAlchemy's greenlet."""

from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import greenlet  # type: ignore[import-untyped]  # noqa: F401 - untyped; without it SQLAlchemy 2.0 fails at the first await only
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

from outbox._publish.publisher import Publishing
from outbox._publish.waiting import in_thread
from outbox.errors import UsageError

O = TypeVar("O", bound=Publishing[Any])  # noqa: E741 - an outbox
AsyncHalfTarget = AsyncSession | async_scoped_session[Any] | AsyncConnection


class AsyncFace(Generic[O]):
    """What both outboxes for asyncio have."""

    sync: O
    """The blocking outbox; both may be used side by side."""

    @classmethod
    def over(cls, outbox: O) -> Self:
        """Return the asyncio interface of an outbox; both may be used side by side."""
        made = cls.__new__(cls)
        made.sync = outbox
        return made

    async def __aenter__(self) -> Self:
        """Use the outbox as a context manager."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await in_thread(self.sync.close)


def plain_target(session: object) -> Any:
    """Return what a blocking outbox takes for what SQLAlchemy has; None for anything else."""
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        return session.sync_session
    return core_of(session) if isinstance(session, AsyncConnection) else None


def no_target(session: object, drivers: str) -> UsageError:
    return UsageError(
        f"Give an AsyncSession or an AsyncConnection of SQLAlchemy, not {type(session).__name__}. {drivers}"
    )


def inner(database: object) -> Any:
    return database.sync_engine if isinstance(database, AsyncEngine) else database


def core_of(connection: AsyncConnection) -> Connection:
    """Return the connection on which the blocking code runs."""
    if connection.sync_connection is None:
        raise UsageError("The connection is not open. Use `async with engine.connect() as connection`.")
    return connection.sync_connection
