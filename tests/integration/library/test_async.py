"""`AsyncOutbox`: the same promises under asyncio, and an event loop that is never held up."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Table, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, registry
from sqlalchemy.schema import MetaData

from outbox import AsyncHalfOutbox
from outbox._kafka.admin import admin_client
from outbox.async_half_outbox import AsyncHalfTransaction
from outbox.errors import PublishFailed, UsageError
from tests.support.async_shop import AsyncShop
from tests.support.harness import doubled, wait_until
from tests.support.shop import Shop

Connection = AsyncConnection | psycopg.AsyncConnection[Any]
Body = Callable[[AsyncShop], Coroutine[Any, Any, None]]


class _BadError(Exception):
    """What a test raises."""


def _run(shop: Shop, body: Body) -> None:
    async def main() -> None:
        async with AsyncShop(shop) as application:
            await body(application)

    asyncio.run(main())


async def test_the_marker_of_a_joined_session_goes_out_when_the_connection_is_seen_again(shop: Shop) -> None:
    topic = shop.topic()
    async with AsyncShop(shop) as application:
        async with application.engine.connect() as connection:
            first = await _joined(application, connection, topic, "first")
            assert not shop.marked(first)
            second = await _joined(application, connection, topic, "second")
            assert not shop.marked(second)
            await asyncio.to_thread(wait_until, lambda: shop.marked(first))
        await asyncio.to_thread(wait_until, lambda: shop.marked(second))
    assert shop.delivered(2, topic) == ["first", "second"]


async def _joined(application: AsyncShop, connection: AsyncConnection, topic: str, value: str) -> str:
    async with connection.begin(), AsyncSession(connection) as session:
        receipt = await application.publish(session, topic, value)
        await session.commit()
    return receipt.transaction_id


async def test_a_scoped_session(shop: Shop) -> None:
    topic = shop.topic()
    async with AsyncShop(shop) as application:
        scoped = async_scoped_session(async_sessionmaker(application.engine), asyncio.current_task)
        await application.outbox.publish(scoped, application.message(topic, "scoped"))
        await scoped.commit()
        await scoped.remove()
    assert shop.delivered(1, topic) == ["scoped"]


async def test_a_listener_of_flush_events_publishes(shop: Shop) -> None:
    class Stock:
        id: int
        count: int

    registry().map_imperatively(Stock, Table(shop.table, MetaData(), autoload_with=shop.engine))
    topic, number = shop.topic(), shop.number()
    async with AsyncShop(shop) as application:

        def flushed(session: Session, _context: object) -> None:
            for stock in session.new:
                application.outbox.sync.publish(session, application.message(topic, str(stock.id)))

        async with AsyncSession(application.engine) as session:
            event.listen(session.sync_session, "after_flush", flushed)
            stock = Stock()
            stock.id, stock.count = number, 1
            session.add(stock)
            await session.commit()
    assert shop.delivered(1, topic) == [str(number)]
    assert shop.has(number)


def test_one_outbox_serves_one_event_loop_after_the_other(shop: Shop) -> None:
    topic = shop.topic()

    async def body(application: AsyncShop) -> None:
        async with application.session() as session:
            await application.publish(session, topic, "v")

    for _ in range(3):
        _run(shop, body)
    assert shop.delivered(3, topic) == ["v"] * 3


async def test_what_is_no_async_session_is_refused(shop: Shop) -> None:
    async with AsyncShop(shop) as application:
        message = application.message(shop.topic(), "v")
        with Session(shop.engine) as session, pytest.raises(UsageError, match=r"AsyncSession .* not Session"):
            await application.outbox.publish(session, message)  # type: ignore[arg-type]  # that is what is tested
        async with await psycopg.AsyncConnection.connect(shop.site.postgres_url) as connection:
            with pytest.raises(UsageError, match=r"outbox\.transaction\(connection\)"):
                await application.outbox.publish(connection, message)  # type: ignore[arg-type]  # that is tested
        with pytest.raises(UsageError, match="not open"):
            await application.outbox.publish(application.engine.connect(), message)
        with pytest.raises(UsageError, match="not open"):
            application.outbox.transaction(application.engine.connect())
        with shop.engine.connect() as blocking, pytest.raises(UsageError, match="async connection"):
            application.outbox.transaction(blocking)  # type: ignore[arg-type]  # as above


async def test_an_async_session_is_refused_by_the_blocking_outbox(shop: Shop) -> None:
    async with AsyncShop(shop) as application, AsyncSession(application.engine) as session:
        with pytest.raises(UsageError, match=r"Session .* not sqlalchemy\.ext\.asyncio\.session\.AsyncSession"):
            shop.outbox.publish(session, application.message(shop.topic(), "v"))  # type: ignore[arg-type]  # tested


@asynccontextmanager
async def _psycopg(application: AsyncShop) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await application.connect() as connection:
        yield connection


@asynccontextmanager
async def _psycopg_in_autocommit(application: AsyncShop) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await application.connect(autocommit=True) as connection:
        yield connection
        assert connection.autocommit


@asynccontextmanager
async def _core(application: AsyncShop) -> AsyncIterator[AsyncConnection]:
    async with application.engine.connect() as connection:
        yield connection


CONNECTIONS = [_psycopg, _psycopg_in_autocommit, _core]


async def _insert(application: AsyncShop, connection: Connection, number: int) -> None:
    if isinstance(connection, AsyncConnection):
        await application.insert(connection, number)
    else:
        await connection.execute(f"INSERT INTO {application.shop.table} VALUES ({number}, 0)".encode())


@pytest.mark.parametrize("eager", [False, True], ids=["at COMMIT", "eager"])
@pytest.mark.parametrize("connect", CONNECTIONS)
async def test_transactions_on_connections(shop: Shop, connect: Any, eager: bool) -> None:  # noqa: FBT001 - a parameter
    topic, kept, struck = shop.topic(), shop.number(), shop.number()

    async def rolled_back_savepoint(application: AsyncShop, connection: Connection, tx: AsyncHalfTransaction) -> None:
        async with tx.savepoint():
            await _insert(application, connection, struck)
            await tx.publish(application.message(topic, "struck"))
            raise _BadError

    async def failing(application: AsyncShop, connection: Connection) -> None:
        async with application.outbox.transaction(connection, eager=eager) as tx:
            await _insert(application, connection, struck)
            await tx.publish(application.message(topic, "never"))
            raise _BadError

    async with AsyncShop(shop) as application, connect(application) as connection:
        with pytest.raises(_BadError):
            await failing(application, connection)
        async with application.outbox.transaction(connection, eager=eager) as tx:
            first = await tx.publish(application.message(topic, "1"))
            async with tx.savepoint():
                await _insert(application, connection, kept)
                await tx.publish(application.message(topic, "2"))
            with pytest.raises(_BadError):
                await rolled_back_savepoint(application, connection, tx)
            await tx.publish(application.message(topic, "3"))
        assert first.transaction_id == tx.transaction_id
        with pytest.raises(UsageError, match="has ended"):
            await tx.publish(application.message(topic, "too late"))
        async with application.outbox.transaction(connection) as tx:
            await tx.publish(application.message(topic, "4"))
    assert shop.delivered(4, topic) == ["1", "2", "3", "4"]
    shop.site.wait_settled()
    assert shop.delivered(4, topic) == ["1", "2", "3", "4"]
    assert shop.has(kept)
    assert not shop.has(struck)


@pytest.mark.parametrize("connect", CONNECTIONS)
async def test_a_connection_in_a_transaction_is_refused(shop: Shop, connect: Any) -> None:
    async with AsyncShop(shop) as application, connect(application) as connection:
        if isinstance(connection, AsyncConnection):
            await connection.begin()
        else:
            await connection.execute("BEGIN")
        with pytest.raises(UsageError, match="already in a transaction"):
            async with application.outbox.transaction(connection):
                pass


async def test_fifty_tasks_at_once(shop: Shop) -> None:
    topic, numbers = shop.topic(), [shop.number() for _ in range(250)]

    async def work(application: AsyncShop, own: list[int]) -> None:
        for number in own:
            async with application.session() as session:
                await application.insert(session, number)
                await application.publish(session, topic, str(number), str(own[0]), eager=bool(number % 2))
                if number % 5 == 0:
                    await session.rollback()

    async with AsyncShop(shop) as application:
        await asyncio.gather(*(work(application, numbers[at : at + 5]) for at in range(0, 250, 5)))
    kept = [number for number in numbers if number % 5]
    found = shop.records(len(kept), topic)
    assert not doubled(found)
    assert sorted(int(record.value or b"") for record in found) == kept
    by_key: dict[bytes | None, list[int]] = {}
    for record in found:
        by_key.setdefault(record.key, []).append(int(record.value or b""))
    assert all(values == sorted(values) for values in by_key.values())


@asynccontextmanager
async def _ticking() -> AsyncIterator[list[float]]:
    """A task that does nothing but look at the clock; the gaps between its looks, in seconds."""
    gaps: list[float] = []

    async def tick() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    task = asyncio.create_task(tick())
    try:
        yield gaps
    finally:
        task.cancel()


@pytest.mark.parametrize("eager", [False, True], ids=["at COMMIT", "eager"])
async def test_the_event_loop_goes_on_while_kafka_does_not_answer(shop: Shop, eager: bool) -> None:  # noqa: FBT001 - as above
    """The half topic's broker is a listener that never says a word: every wait of the library takes its full time."""
    timeout = 3.0
    async with AsyncShop(shop) as application:
        silent = socket.create_server(("127.0.0.1", 0))
        kafka = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        outbox = AsyncHalfOutbox(
            "orders", kafka, channel=shop.site.name, tables=shop.site.tables, publish_timeout_seconds=timeout
        )
        async with _ticking() as gaps, AsyncSession(application.engine) as session:
            began = time.monotonic()
            with pytest.raises(PublishFailed):
                await outbox.publish(session, application.message("topic", "never"), eager=eager)
            waited = time.monotonic() - began
        assert waited > timeout / 2
        assert max(gaps) < waited / 4
        await outbox.close()
        silent.close()


async def test_the_event_loop_goes_on_while_a_lost_connection_to_kafka_is_made_anew(shop: Shop) -> None:
    """A fatal error took the producer between `publish()` and COMMIT; whoever answers now says nothing."""
    topic = shop.topic()
    timeout = 3.0
    async with AsyncShop(shop) as application:
        silent = socket.create_server(("127.0.0.1", 0))
        outbox = AsyncHalfOutbox.over(shop.site.half_outbox(publish_timeout_seconds=timeout))
        async with _ticking() as gaps, AsyncSession(application.engine) as session:
            await outbox.publish(session, application.message(topic, "never"))
            outbox.sync._sender._producer = None
            outbox.sync._sender._admin = admin_client({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"})
            began = time.monotonic()
            with pytest.raises(PublishFailed):
                await session.commit()
            waited = time.monotonic() - began
        assert waited > timeout / 2
        assert max(gaps) < waited / 4
        await outbox.close()
        silent.close()


async def test_an_op_marker_never_waits_for_kafka(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same between the seal and the end of COMMIT: the marker is dropped, and the checker decides."""
    topic = shop.topic()
    opened: list[str] = []
    outbox = AsyncHalfOutbox.over(shop.site.half_outbox())
    sender = outbox.sync._sender

    def lose(name: str) -> None:
        if name == "outbox.committed":
            sender._producer = None
            monkeypatch.setattr(sender, "connect", lambda _budget: opened.append("opened"))

    monkeypatch.setattr("outbox._half.seal.failpoint", lose)
    async with AsyncShop(shop) as application, AsyncSession(application.engine) as session:
        await outbox.publish(session, application.message(topic, "committed"))
        await session.commit()
    assert not opened
    assert shop.delivered(1, topic) == ["committed"]
