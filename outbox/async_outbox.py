"""`AsyncOutbox`: the outbox for asyncio. Waiting for Kafka or Postgres never blocks the event loop.

It runs the blocking implementation in SQLAlchemy's greenlet, where only the current task waits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import greenlet  # type: ignore[import-untyped]  # noqa: F401 - untyped; without it SQLAlchemy 2.0 fails at the first await only
import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.util import greenlet_spawn

from outbox._publish.session_connection import BindArguments
from outbox._publish.waiting import EVENT_LOOP, in_thread
from outbox._receipts import Receipt
from outbox._table.insert_connection import AsyncDriverConnection, is_async_connection
from outbox.errors import UsageError
from outbox.message import Message
from outbox.outbox import Outbox, OutboxOptions
from outbox.outcome import Outcome
from outbox.recorder import Recorder
from outbox.transaction import Transaction

T = TypeVar("T")

AsyncTarget = AsyncSession | async_scoped_session[Any] | AsyncConnection | AsyncDriverConnection
"""What `publish()` takes: in half mode a session or a connection of SQLAlchemy."""


class AsyncTransaction:
    """An open local transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    @property
    def transaction_id(self) -> str:
        """Id of the transaction, a UUIDv7."""
        return self._transaction.transaction_id

    async def publish(self, message: Message, *, eager: bool | None = None) -> Receipt:
        """Publish a message with this transaction; as `Transaction.publish()`."""
        return await greenlet_spawn(self._transaction.publish, message, eager=eager)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Open a SAVEPOINT; an exception rolls it back, with the messages published inside, and is raised again."""
        return _in_greenlet(self._transaction.savepoint())


class AsyncOutbox:
    """Publishes messages with local transactions of asyncio applications; needs the extra `asyncio`.

    One object serves a whole process, also with several event loops one after the other.

    Args:
        group: Producer group; unique to a service.
        kafka: librdkafka properties for half mode; `bootstrap.servers` is required. Table mode has none.
        options: The other arguments of `Outbox`: `mode`, `channel`, `tables`, `publish_timeout_seconds`, …

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    def __init__(self, group: str, kafka: Mapping[str, Any] | None = None, **options: Unpack[OutboxOptions]) -> None:
        self.sync = Outbox(group, kafka, **options)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, recorder: Recorder | None = None) -> Self:
        """Create an outbox from the environment, as `Outbox.from_env()`.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        return cls.over(Outbox.from_env(environ, recorder=recorder))

    @classmethod
    def over(cls, outbox: Outbox) -> Self:
        """Return the asyncio interface of an outbox; both may be used side by side."""
        made = cls.__new__(cls)
        made.sync = outbox
        return made

    async def publish(
        self,
        session: AsyncTarget,
        message: Message,
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Receipt:
        """Publish a message with the transaction of a session or a connection; as `Outbox.publish()`.

        In table mode it also takes a connection of psycopg or asyncpg in its transaction.

        In a listener of flush events, which is not a coroutine, call `outbox.sync.publish(session, …)` with the
        session that the event passes.

        Example:
            async with AsyncSession(engine) as session, session.begin():
                session.add(order)
                await outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        """
        return await greenlet_spawn(
            self.sync.publish, self._target(session), message, eager=eager, bind_arguments=bind_arguments
        )

    def _target(self, session: AsyncTarget) -> Any:
        """Return what the blocking outbox takes."""
        if isinstance(session, async_scoped_session):
            session = session()
        if isinstance(session, AsyncSession):
            return session.sync_session
        if isinstance(session, AsyncConnection):
            return _unwrapped(session)
        if self.sync.settings.mode == "table" and is_async_connection(session):
            return session
        drivers = (
            "In table mode it also takes a connection of psycopg or asyncpg in its transaction."
            if self.sync.settings.mode == "table"
            else "For a connection of psycopg use outbox.transaction(connection)."
        )
        raise UsageError(
            f"publish() takes an AsyncSession or an AsyncConnection of SQLAlchemy, not {type(session).__name__}. "
            f"{drivers}"
        )

    async def publish_many(
        self,
        session: AsyncTarget,
        messages: Iterable[Message],
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> list[Receipt]:
        """Publish several messages; as `Outbox.publish_many()`."""
        if self.sync.settings.mode == "table":
            target = self._target(session)
            return await greenlet_spawn(
                self.sync.publish_many, target, messages, eager=eager, bind_arguments=bind_arguments
            )
        return [
            await self.publish(session, message, eager=eager, bind_arguments=bind_arguments) for message in messages
        ]

    def transaction(
        self, connection: psycopg.AsyncConnection[Any] | AsyncConnection, *, eager: bool | None = None
    ) -> AbstractAsyncContextManager[AsyncTransaction]:
        """Run a local transaction on an async connection of psycopg or SQLAlchemy; as `Outbox.transaction()`.

        Example:
            async with outbox.transaction(connection) as tx:
                await connection.execute("UPDATE stock SET left_over = left_over - 1 WHERE id = 7")
                await tx.publish(Message("stock", value=b"...", key=b"7"))
        """
        return self._transaction(self.sync.open_transaction(_unwrapped(connection), eager=eager))

    @asynccontextmanager
    async def _transaction(self, blocking: AbstractContextManager[Transaction]) -> AsyncIterator[AsyncTransaction]:
        async with _in_greenlet(blocking) as transaction:
            yield AsyncTransaction(transaction)

    async def outcome(self, transaction_id: str, database: AsyncEngine | AsyncDriverConnection) -> Outcome:
        """Return the outcome of a local transaction; as `Outbox.outcome()`."""
        inner = database.sync_engine if isinstance(database, AsyncEngine) else database
        return await greenlet_spawn(self.sync.ask_outcome, transaction_id, inner)

    async def ping(self) -> None:
        """Check that Kafka answers and the channel exists; as `Outbox.ping()`."""
        sender = self.sync._sender  # noqa: SLF001 - the same library, and no part of its public surface
        await greenlet_spawn(sender.ping, EVENT_LOOP)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - it bounds librdkafka's flush
        """Flush op markers and refuse further publications; as `Outbox.close()`."""
        await in_thread(partial(self.sync.close, timeout))

    async def __aenter__(self) -> Self:
        """Use the outbox as a context manager."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the outbox."""
        await self.close()


def _unwrapped(connection: object) -> object:
    if isinstance(connection, AsyncConnection):
        if connection.sync_connection is None:
            raise UsageError("The connection is not open. Use `async with engine.connect() as connection`.")
        return connection.sync_connection
    if isinstance(connection, psycopg.AsyncConnection):
        return connection
    raise UsageError(
        f"outbox.transaction() takes an async connection of psycopg or of SQLAlchemy, not {type(connection).__name__}."
    )


@asynccontextmanager
async def _in_greenlet(context: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a blocking context in SQLAlchemy's greenlet."""
    value = await greenlet_spawn(context.__enter__)
    try:
        yield value
    except BaseException as error:
        if not await greenlet_spawn(context.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await greenlet_spawn(context.__exit__, None, None, None)
