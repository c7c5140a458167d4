"""`AsyncHalfOutbox`: half mode for asyncio. Waiting never blocks the event loop."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self, TypeVar, Unpack

import psycopg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util import greenlet_spawn

from outbox._half.cluster_connection import CLOSE_SECONDS
from outbox._publish.async_face import AsyncFace, AsyncHalfTarget, core_of, inner, no_target, plain_target
from outbox._publish.session_connection import BindArguments
from outbox._publish.waiting import EVENT_LOOP, in_thread
from outbox.errors import UsageError
from outbox.half_outbox import HalfOutbox, HalfOutboxOptions
from outbox.message import Message
from outbox.recorder import Recorder
from outbox.transaction import HalfTransaction, Outcome, Receipt

T = TypeVar("T")


class AsyncHalfTransaction:
    """An open local transaction of half mode."""

    def __init__(self, transaction: HalfTransaction) -> None:
        self._transaction = transaction
        self.transaction_id = transaction.transaction_id

    async def publish(self, message: Message, *, eager: bool | None = None) -> Receipt:
        """Publish a message with this transaction; as `HalfTransaction.publish()`."""
        return await greenlet_spawn(self._transaction.publish, message, eager=eager)

    def savepoint(self) -> AbstractAsyncContextManager[None]:
        """Open a SAVEPOINT; an exception rolls it back, with the messages published inside, and is raised again."""
        return _in_greenlet(self._transaction.savepoint())


class AsyncHalfOutbox(AsyncFace[HalfOutbox]):
    """`HalfOutbox` for asyncio applications; needs the extras `asyncio` and `half`.

    One object serves a whole process, also with several event loops one after the other.

    Args:
        name: Name of the service; all its processes have the same one, which never changes.
        kafka: librdkafka properties; `bootstrap.servers` is required.
        options: The other arguments of `HalfOutbox`: `channel`, `tables`, `publish_timeout_seconds`, …

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    def __init__(self, name: str, kafka: Mapping[str, Any], **options: Unpack[HalfOutboxOptions]) -> None:
        self.sync = HalfOutbox(name, kafka, **options)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, recorder: Recorder | None = None) -> Self:
        """Create an outbox from the environment, as `HalfOutbox.from_env()`.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        return cls.over(HalfOutbox.from_env(environ, recorder=recorder))

    async def publish(
        self,
        session: AsyncHalfTarget,
        message: Message,
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> Receipt:
        """Publish a message with the transaction of a session or a connection; as `HalfOutbox.publish()`."""
        target = _half_target(session)
        return await greenlet_spawn(self.sync.publish, target, message, eager=eager, bind_arguments=bind_arguments)

    async def publish_many(
        self,
        session: AsyncHalfTarget,
        messages: Iterable[Message],
        *,
        eager: bool | None = None,
        bind_arguments: BindArguments | None = None,
    ) -> list[Receipt]:
        """Publish several messages; as `HalfOutbox.publish_many()`."""
        return await greenlet_spawn(
            self.sync.publish_many, _half_target(session), messages, eager=eager, bind_arguments=bind_arguments
        )

    def transaction(
        self, connection: psycopg.AsyncConnection[Any] | AsyncConnection, *, eager: bool | None = None
    ) -> AbstractAsyncContextManager[AsyncHalfTransaction]:
        """Run a local transaction on an async connection of psycopg or SQLAlchemy; as `HalfOutbox.transaction()`.

        Example:
            async with outbox.transaction(connection) as tx:
                await connection.execute("UPDATE stock SET left_over = left_over - 1 WHERE id = 7")
                await tx.publish(Message("stock", value=b"...", key=b"7"))
        """
        publisher = self.sync._publisher  # noqa: SLF001 - as above
        return _transaction(publisher.transaction(_unwrapped(connection), eager=eager))

    async def outcome(self, transaction_id: str, database: AsyncEngine | psycopg.AsyncConnection[Any]) -> Outcome:
        """Return the outcome of a local transaction; as `HalfOutbox.outcome()`."""
        return await greenlet_spawn(self.sync.outcome, transaction_id, inner(database))

    async def ping(self) -> None:
        """Check that Kafka answers and the channel exists; as `HalfOutbox.ping()`."""
        sender = self.sync._sender  # noqa: SLF001 - as above
        await greenlet_spawn(sender.ping, EVENT_LOOP)

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:  # noqa: ASYNC109 - it bounds librdkafka's flush
        """Flush op markers and refuse further publications; as `HalfOutbox.close()`."""
        await in_thread(partial(self.sync.close, timeout))


def _half_target(session: object) -> Any:
    target = plain_target(session)
    if target is None:
        raise no_target(session, "For a connection of psycopg use outbox.transaction(connection).")
    return target


def _unwrapped(connection: object) -> object:
    if isinstance(connection, AsyncConnection):
        return core_of(connection)
    if isinstance(connection, psycopg.AsyncConnection):
        return connection
    raise UsageError(
        f"outbox.transaction() takes an async connection of psycopg or of SQLAlchemy, not {type(connection).__name__}."
    )


@asynccontextmanager
async def _transaction(blocking: AbstractContextManager[HalfTransaction]) -> AsyncIterator[AsyncHalfTransaction]:
    async with _in_greenlet(blocking) as transaction:
        yield AsyncHalfTransaction(transaction)


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
