"""Deduplication for consumers: store the ids of handled messages in the transaction that handles them.

Kafka delivers a message again when a consumer dies before it commits its offsets, when offsets are reset, and when a
relay lost its checkpoint's metadata. The id in the header `outbox-id` stays the same. A consumer that stores it in its
own transaction handles each message once:

    def handle(session: Session, message: Message) -> None:
        session.add(Invoice(...))

    Inbox("billing").run(sessionmaker(engine).begin, handle, {"bootstrap.servers": "..."}, "orders")

In a loop of your own call `once()`, and commit the offsets after that transaction, never before.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.orm import Session, scoped_session

from outbox._consume.record_id import MAX_CHARACTERS, ConsumedRecord, fits, message_id_of
from outbox._consume.trial import Ended
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.optional_packages import extra
from outbox._postgres.table_errors import sqlstate_of
from outbox._table.insert_connection import DbapiConnection, insert_connection, require_transaction
from outbox._table.message_insert import Statement
from outbox.errors import ConfigurationError, OutboxError, TableError, UsageError
from outbox.settings import TableNames

if TYPE_CHECKING:  # what is in extras, or in other packages
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from aiokafka import ConsumerRecord
    from confluent_kafka import Message
    from sqlalchemy import Connection

    from outbox.async_outbox import AsyncTarget

log = logging.getLogger("outbox")
T = TypeVar("T")
_UNUSABLE = {
    "42P01": "does not exist in this database. Run `outbox table create --inbox`",
    "42501": "is closed to this role. Run `outbox table create --inbox --consumer-role ROLE`",
}


class Inbox:
    """The messages that one consumer group has handled, in one database.

    Args:
        group: The consumer group; each group handles each message once.
        tables: Schema and prefix of the table `<prefix>_inbox`, which `outbox table create --inbox` creates.

    Raises:
        ConfigurationError: The group's name is empty or longer than 255 characters.

    Example:
        >>> Inbox("billing")
        Inbox(group='billing', table='public.outbox_inbox')
    """

    def __init__(self, group: str, tables: TableNames | None = None) -> None:
        if not fits(group):
            raise ConfigurationError(f"Consumer group {group!r} is not valid. Use 1 to {MAX_CHARACTERS} characters.")
        self.group = group
        self._table = InboxTable(tables or TableNames())
        once = self._table.once_statements
        self._statements = {False: once("%s", "%s"), True: once("$1", "$2")}  # by whether they are numbered

    def __repr__(self) -> str:
        """Return group and table."""
        return f"Inbox(group={self.group!r}, table={self._table.full_name!r})"

    def once(
        self,
        session: Session | scoped_session[Any] | Connection | DbapiConnection,
        message: ConsumedRecord | str,
    ) -> bool:
        """Store a message's id in the caller's transaction and return whether the message is new.

        Handle a new message in the same transaction; skip any other. If another transaction is handling the same
        message, this call waits for its end: after its COMMIT the message is not new, after its ROLLBACK it is. In
        REPEATABLE READ or SERIALIZABLE the call fails after that COMMIT with SQLSTATE 40001: roll back and process the
        message again.

        Args:
            session: A session, or a connection to Postgres of SQLAlchemy, Django, psycopg, psycopg2 or pg8000. Its
                transaction begins if none is open. Handle the message on the same one.
            message: The record as consumed by confluent-kafka, aiokafka, kafka-python or FastStream. For records that
                did not come through an outbox: an id of at most 255 characters, such as
                `f"{topic}/{partition}/{offset}"`.

        Raises:
            UsageError: The record has no header `outbox-id`, or `session` is in autocommit or of another type.
            ConfigurationError: The table does not exist.
            TableError: The id was not stored, and is not there.
        """
        id_ = message_id_of(message)
        target: Any = session() if isinstance(session, scoped_session) else session
        connection = insert_connection(target.connection() if isinstance(target, Session) else target)
        require_transaction(connection, "the id")
        insert, find = (Statement(one, self._parameters(id_)) for one in self._statements[connection.numbered])
        with self._missing_table():
            return bool(connection.run(insert)) or self._was_handled(id_, connection.run(find))

    async def once_async(self, session: AsyncTarget, message: ConsumedRecord | str) -> bool:
        """Store a message's id as `once()` does, without blocking the event loop; needs the extra `asyncio`.

        Args:
            session: SQLAlchemy's AsyncSession or AsyncConnection, or a connection of psycopg or asyncpg.
            message: As for `once()`.

        Raises:
            UsageError: As for `once()`.
            ConfigurationError: As for `once()`; `TableError` is one.
        """
        from sqlalchemy.util import greenlet_spawn  # noqa: PLC0415 - of the extra

        with extra("asyncio", "once_async()"):
            from outbox.async_outbox import row_target  # noqa: PLC0415 - as above

        return await greenlet_spawn(self.once, row_target(session), message)

    def _parameters(self, id_: str) -> tuple[str, str]:
        return self.group.encode().hex(), id_.encode().hex()

    def _was_handled(self, id_: str, rows: Sequence[object]) -> bool:
        """Return False: the message is not new. Refuse one that was neither stored now nor before (R78)."""
        if not rows:
            raise TableError(
                f"The id {id_!r} of group {self.group!r} was not stored in table {self._table.full_name}, and is not "
                "there: a trigger, a rule or row security keeps rows out, or it was purged just now. Roll back, run "
                "`outbox table create --inbox`, which names what is wrong, and handle the message again."
            )
        return False

    def run(
        self,
        begin: Callable[[], AbstractContextManager[T]],
        handler: Callable[[T, Message], object],
        kafka: Mapping[str, Any],
        topics: str | Sequence[str],
        *,
        dead_letters: str | None = None,
        attempts: int = 5,
        first_pause_seconds: float = 1.0,
        stop: threading.Event | None = None,
    ) -> None:
        """Consume with confluent-kafka until SIGTERM or SIGINT: handle each message once, across outages.

        Each message has a transaction of its own, in which its id is stored; its offset is stored after that. A lost
        connection, a restarting database, a deadlock or a serialization failure is waited for, without limit. Any other
        exception counts; pauses grow twofold up to 30 s, and meanwhile the consumer stays in its group.

        Args:
            begin: Opens a transaction of SQLAlchemy or psycopg that ends with the block: `sessionmaker(engine).begin`,
                `engine.begin`, or `connection` of a pool of psycopg.
            handler: Called with that transaction and a new message; writes through it only, and does not commit.
            kafka: Properties of librdkafka, without those of group, offsets and isolation.
            topics: One topic, or several.
            dead_letters: Topic to which a message is written that failed `attempts` times, with headers
                `dead-letter-reason`, `-topic`, `-partition`, `-offset`, `-group` and `-attempts`. Its id is not stored.
                None: the exception ends the call.
            attempts: How often a message is tried.
            first_pause_seconds: Pause after the first failure.
            stop: Set it to end the call; needed in another thread than the main one, which gets no signals.

        Raises:
            ConfigurationError: The inbox table or `dead_letters` is missing, or `kafka` or `attempts` cannot be used.
            UsageError: `begin` opens no transaction, or does not commit it.
        """
        from outbox._consume.consumer_loop import ConsumerLoop, asked_by_signal  # noqa: PLC0415 - who consumes otherwise

        handle = self._handling(begin, handler)
        topics = _checked(topics, dead_letters, attempts, stop)
        with nullcontext(stop.is_set) if stop else asked_by_signal() as is_asked, _unwrapped(self.group):
            ConsumerLoop(self.group, handle, kafka, topics, dead_letters, attempts, first_pause_seconds, is_asked).run()

    async def run_async(
        self,
        begin: Callable[[], AbstractAsyncContextManager[T]],
        handler: Callable[[T, ConsumerRecord[bytes, bytes]], Awaitable[object]],
        kafka: Mapping[str, Any],
        topics: str | Sequence[str],
        *,
        dead_letters: str | None = None,
        attempts: int = 5,
        first_pause_seconds: float = 1.0,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Consume with aiokafka as `run()` does with confluent-kafka.

        Args:
            begin: `async_sessionmaker(engine).begin`, `begin` of an AsyncEngine, or `connection` of an async pool of
                psycopg; for asyncpg a function that yields a connection inside its transaction.
            handler: A coroutine function.
            kafka: Arguments of `AIOKafkaConsumer`, without those of group, offsets, isolation and deserializers.
            topics: As for `run()`.
            dead_letters: As for `run()`.
            attempts: As for `run()`.
            first_pause_seconds: As for `run()`.
            stop: Set it to end the call; None: SIGTERM and SIGINT end it, and reach handlers of the application, too.

        Raises:
            ConfigurationError: As for `run()`.
            UsageError: As for `run()`.
        """
        from outbox._consume.async_consumer_loop import AsyncConsumerLoop, set_by_signal  # noqa: PLC0415 - as above

        handle = self._handling_async(begin, handler)
        topics = _checked(topics, dead_letters, attempts, stop)
        with nullcontext(stop) if stop else set_by_signal() as asked, _unwrapped(self.group):
            await AsyncConsumerLoop(
                self.group, handle, kafka, topics, dead_letters, attempts, first_pause_seconds, asked
            ).run()

    def _handling(
        self, begin: Callable[[], AbstractContextManager[T]], handler: Callable[[T, Message], object]
    ) -> Callable[[Message], None]:
        """Return what handles a message in a transaction. The first new one is looked for again: is it committed?"""
        is_proven = False

        def handle(message: Message, *, again: bool = False) -> None:
            nonlocal is_proven
            id_, is_new, is_whole = message_id_of(message), False, False
            with ExitStack() as stack:
                with _ending():
                    _require_begun(transaction := stack.enter_context(begin()))
                    is_new = self.once(transaction, id_)  # type: ignore[arg-type]
                if is_new:
                    _require("its block ends without COMMIT", holds=not again)
                    handler(transaction, message)
                    _require_stored(is_missing=self.once(transaction, id_))  # type: ignore[arg-type]
                is_whole = True
            _require("its block hides exceptions", holds=is_whole)
            if is_new and not is_proven:
                handle(message, again=True)
                is_proven = True

        return handle

    def _handling_async(
        self,
        begin: Callable[[], AbstractAsyncContextManager[T]],
        handler: Callable[[T, ConsumerRecord[bytes, bytes]], Awaitable[object]],
    ) -> Callable[[ConsumerRecord[bytes, bytes]], Awaitable[None]]:
        is_proven = False

        async def handle(record: ConsumerRecord[bytes, bytes], *, again: bool = False) -> None:
            nonlocal is_proven
            id_, is_new, is_whole = message_id_of(record), False, False
            async with AsyncExitStack() as stack:
                with _ending():
                    _require_begun(transaction := await stack.enter_async_context(begin()))
                    is_new = await self.once_async(transaction, id_)  # type: ignore[arg-type]
                if is_new:
                    _require("its block ends without COMMIT", holds=not again)
                    await handler(transaction, record)
                    _require_stored(is_missing=await self.once_async(transaction, id_))  # type: ignore[arg-type]
                is_whole = True
            _require("its block hides exceptions", holds=is_whole)
            if is_new and not is_proven:
                await handle(record, again=True)
                is_proven = True

        return handle

    @contextmanager
    def _missing_table(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if (remedy := _UNUSABLE.get(sqlstate_of(error) or "")) is None:
                raise
            raise ConfigurationError(
                f"Table {self._table.full_name} {remedy}, or the SQL of `outbox table create --inbox --print-sql`."
            ) from error


def _checked(topics: str | Sequence[str], dead_letters: str | None, attempts: int, stop: object) -> list[str]:
    if stop is None and threading.current_thread() is not threading.main_thread():
        raise UsageError("Only the main thread gets signals, which end this call. Give it an event as `stop`.")
    if attempts < 1:
        raise ConfigurationError(f"`attempts` is {attempts}, so that no message would be handled. Give 1 or more.")
    listed = [topics] if isinstance(topics, str) else list(topics)
    if dead_letters in listed:
        raise ConfigurationError(f"Topic {dead_letters!r} of `dead_letters` is read itself. Name another one, or none.")
    return listed


def _require_stored(*, is_missing: bool) -> None:
    """Refuse to go on without the id (R78); the look itself fails after an error that the handler caught."""
    if is_missing:
        raise UsageError("The handler has rolled its transaction back. Let it raise an exception, or use a SAVEPOINT.")


def _require(otherwise: str, *, holds: bool) -> None:
    if not holds:
        raise Ended(_unusable(otherwise))


def _require_begun(transaction: object) -> None:
    """Refuse one that would commit no effect; on psycopg it begins with the first statement."""
    asked = getattr(transaction, "in_transaction", None) or getattr(transaction, "is_in_transaction", None)
    if callable(asked) and not asked():
        raise _unusable(f"it gives {type(transaction).__name__} outside of a transaction")


def _unusable(why: object) -> UsageError:
    return UsageError(
        f"`begin` opens no transaction that it commits: {why}. Give begin of a sessionmaker or an engine (to "
        "run_async() of an async one), connection of a pool of psycopg, or for asyncpg a function with "
        "@asynccontextmanager: async with pool.acquire() as connection, connection.transaction(): yield connection"
    )


@contextmanager
def _ending() -> Iterator[None]:
    """End the loop if inbox or `begin` cannot be used as they are: no message is to blame."""
    try:
        yield
    except (ConfigurationError, UsageError) as error:
        raise Ended(error) from error
    except TypeError as error:
        raise Ended(_unusable(error)) from error
    except OSError as error:  # of the network: several addresses, no route, no answer
        raise ConnectionError(str(error)) from error


@contextmanager
def _unwrapped(group: str) -> Iterator[None]:
    """Log the error that ends a call: an application that awaits its task sees it last."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - it is raised
        found = error.error if isinstance(error, Ended) else error
        why = f"{type(found).__name__}: {found}" if isinstance(found, OutboxError) else type(found).__name__
        log.error("The consumer of group %s has ended: %s", group, why)  # noqa: TRY400 - other texts may quote the message
        raise found from found.__cause__
