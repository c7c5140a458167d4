"""`AsyncOutbox`: table mode for asyncio. Waiting never blocks the event loop.

The blocking implementation runs in SQLAlchemy's greenlet, where only the current task waits.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Self, Unpack

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import greenlet_spawn

from outbox._publish.async_face import AsyncFace, AsyncHalfTarget, inner, no_target, plain_target
from outbox._publish.session_connection import BindArguments
from outbox._table.insert_connection import AsyncDriverConnection, is_async_connection
from outbox.message import Message
from outbox.outbox import Outbox, OutboxOptions
from outbox.recorder import Recorder
from outbox.transaction import Outcome, Receipt

AsyncTarget = AsyncHalfTarget | AsyncDriverConnection


class AsyncOutbox(AsyncFace[Outbox]):
    """Publishes messages with local transactions of asyncio applications; needs the extra `asyncio`.

    One object serves a whole process, also with several event loops one after the other.

    Args:
        name: Name of the service; all its processes have the same one, which never changes.
        options: The other arguments of `Outbox`: `channel`, `tables`, `recorder`.

    Raises:
        ConfigurationError: A setting is malformed.
    """

    def __init__(self, name: str, **options: Unpack[OutboxOptions]) -> None:
        self.sync = Outbox(name, **options)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, *, recorder: Recorder | None = None) -> Self:
        """Create an outbox from the environment, as `Outbox.from_env()`.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        return cls.over(Outbox.from_env(environ, recorder=recorder))

    async def publish(
        self, session: AsyncTarget, message: Message, *, bind_arguments: BindArguments | None = None
    ) -> Receipt:
        """Publish a message with the transaction of a session or a connection; as `Outbox.publish()`.

        It also takes a connection of psycopg or asyncpg in its transaction.

        In a listener of flush events, which is no coroutine, call `outbox.sync.publish(session, …)` with its session.

        Example:
            async with AsyncSession(engine) as session, session.begin():
                session.add(order)
                await outbox.publish(session, Message("orders", value=b"...", key=b"42"))
        """
        return await greenlet_spawn(self.sync.publish, row_target(session), message, bind_arguments=bind_arguments)

    async def publish_many(
        self, session: AsyncTarget, messages: Iterable[Message], *, bind_arguments: BindArguments | None = None
    ) -> list[Receipt]:
        """Publish several messages; as `Outbox.publish_many()`."""
        return await greenlet_spawn(
            self.sync.publish_many, row_target(session), messages, bind_arguments=bind_arguments
        )

    async def cancel(self, session: AsyncTarget, receipt: Receipt) -> bool:
        """Take back a message with `not_before`; as `Outbox.cancel()`."""
        return await greenlet_spawn(self.sync.cancel, row_target(session), receipt)

    async def outcome(self, transaction_id: str, database: AsyncEngine | AsyncDriverConnection) -> Outcome:
        """Return the outcome of a local transaction; as `Outbox.outcome()`."""
        return await greenlet_spawn(self.sync.outcome, transaction_id, inner(database))

    async def close(self) -> None:
        """Refuse further publications."""
        self.sync.close()


def row_target(session: object) -> Any:
    """Return what the blocking code of table mode takes for an async session or connection."""
    target = plain_target(session)
    if target is not None or is_async_connection(session):
        return session if target is None else target
    raise no_target(session, "It also takes a connection of psycopg or asyncpg in its transaction.")
