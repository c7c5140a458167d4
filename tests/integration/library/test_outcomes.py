"""How COMMIT ends: committed, rolled back, or unknown; and how `outcome()` finds out what nobody saw."""

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from outbox import AsyncHalfOutbox, Message
from outbox.errors import CommitOutcomeUnknown, TableError, TransactionFenced, UsageError
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpKind, OpSource
from outbox.transaction import Outcome
from tests.proxies.postgres import LossyProxy
from tests.support.harness import Site, wait_until
from tests.support.shop import Shop


class Order(NamedTuple):
    shop: Shop
    url: str
    topic: str
    number: int
    stock: int  # of the business row; a trigger makes trouble at COMMIT for some
    ids: list[str]

    @property
    def insert(self) -> str:
        return f"INSERT INTO {self.shop.table} VALUES ({self.number}, {self.stock})"

    @property
    def message(self) -> Message:
        return Message(self.shop.site.topic(self.topic), str(self.number), self.topic)


@contextmanager
def _engine(url: str) -> Iterator[Engine]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    yield engine
    engine.dispose()


@asynccontextmanager
async def _async_engine(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(
        "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(url), poolclass=NullPool
    )
    yield engine
    await engine.dispose()


def _in_a_session(order: Order) -> None:
    with _engine(order.url) as engine, Session(engine) as session, session.begin():
        session.execute(text(order.insert))
        order.ids.append(order.shop.outbox.publish(session, order.message).transaction_id)


def _in_an_eager_session(order: Order) -> None:
    with _engine(order.url) as engine, Session(engine) as session, session.begin():
        session.execute(text(order.insert))
        order.ids.append(order.shop.outbox.publish(session, order.message, eager=True).transaction_id)


def _on_a_core_connection(order: Order) -> None:
    with _engine(order.url) as engine, engine.connect() as connection, order.shop.outbox.transaction(connection) as tx:
        connection.execute(text(order.insert))
        order.ids.append(tx.publish(order.message).transaction_id)


def _in_engine_begin(order: Order) -> None:
    with _engine(order.url) as engine, engine.begin() as connection:
        connection.execute(text(order.insert))
        order.ids.append(order.shop.outbox.publish(connection, order.message).transaction_id)


def _on_a_driver_connection(order: Order) -> None:
    with psycopg.connect(order.url) as connection, order.shop.outbox.transaction(connection) as tx:
        connection.execute(order.insert.encode())
        order.ids.append(tx.publish(order.message).transaction_id)


async def _in_an_async_session(order: Order) -> None:
    outbox = AsyncHalfOutbox.over(order.shop.outbox)
    async with _async_engine(order.url) as engine, AsyncSession(engine) as session, session.begin():
        await session.execute(text(order.insert))
        order.ids.append((await outbox.publish(session, order.message)).transaction_id)


async def _on_an_async_core_connection(order: Order) -> None:
    outbox = AsyncHalfOutbox.over(order.shop.outbox)
    async with _async_engine(order.url) as engine, engine.connect() as connection, outbox.transaction(connection) as tx:
        await connection.execute(text(order.insert))
        order.ids.append((await tx.publish(order.message)).transaction_id)


async def _in_async_engine_begin(order: Order) -> None:
    outbox = AsyncHalfOutbox.over(order.shop.outbox)
    async with _async_engine(order.url) as engine, engine.begin() as connection:
        await connection.execute(text(order.insert))
        order.ids.append((await outbox.publish(connection, order.message)).transaction_id)


async def _on_an_async_driver_connection(order: Order) -> None:
    outbox = AsyncHalfOutbox.over(order.shop.outbox)
    async with await psycopg.AsyncConnection.connect(order.url) as connection, outbox.transaction(connection) as tx:
        await connection.execute(order.insert.encode())
        order.ids.append((await tx.publish(order.message)).transaction_id)


Buy = Callable[[Order], Coroutine[Any, Any, None] | None]
BUYERS: list[Buy] = [
    *(_in_a_session, _in_an_eager_session, _on_a_core_connection, _in_engine_begin, _on_a_driver_connection),
    *(_in_an_async_session, _on_an_async_core_connection, _in_async_engine_begin, _on_an_async_driver_connection),
]


def _run(buy: Buy, order: Order) -> None:
    running = buy(order)
    if running is not None:
        asyncio.run(running)


SLEEPS, FAILS = -1, -2
"""Counts of business rows with which COMMIT sleeps, or fails."""


@pytest.fixture(autouse=True, scope="module")
def _trouble_at_commit(shop: Shop) -> None:
    """Deferred triggers: they run inside COMMIT."""
    with shop.site.connect() as connection:
        connection.execute(
            f"""
            CREATE FUNCTION {shop.table}_trouble() RETURNS trigger LANGUAGE plpgsql AS $$
                BEGIN
                    IF NEW.count = {SLEEPS} THEN PERFORM pg_sleep(120); END IF;
                    RAISE check_violation;
                END $$;
            CREATE CONSTRAINT TRIGGER trouble AFTER INSERT ON {shop.table} DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW WHEN (NEW.count < 0) EXECUTE FUNCTION {shop.table}_trouble()
            """.encode()
        )


@contextmanager
def _reply_lost(shop: Shop) -> Iterator[tuple[str, int]]:
    with LossyProxy(shop.site.postgres_url) as proxy:
        yield proxy.url, 0
        assert proxy.cut.is_set()


@contextmanager
def _commit_lost(shop: Shop) -> Iterator[tuple[str, int]]:
    with LossyProxy(shop.site.postgres_url, arrives=False) as proxy:
        yield proxy.url, 0
        assert proxy.cut.is_set()


@contextmanager
def _backend_ended(shop: Shop) -> Iterator[tuple[str, int]]:
    name = uuid.uuid4().hex
    url = f"{shop.site.postgres_url}?application_name={name}"
    if "?" in shop.site.postgres_url:
        url = f"{shop.site.postgres_url}&application_name={name}"

    def end() -> None:
        with shop.site.connect() as connection:
            ending = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = %s AND query = 'COMMIT' AND wait_event = 'PgSleep'"
            )
            wait_until(lambda: connection.execute(ending, (name,)).fetchone() is not None)

    thread = threading.Thread(target=end)
    thread.start()
    yield url, SLEEPS
    thread.join()


@pytest.mark.parametrize(
    ("lose", "outcome"),
    [(_reply_lost, Outcome.COMMITTED), (_commit_lost, Outcome.ROLLED_BACK), (_backend_ended, Outcome.ROLLED_BACK)],
)
@pytest.mark.parametrize("buy", BUYERS)
def test_nobody_saw_how_commit_ended(
    shop: Shop, buy: Buy, lose: Callable[[Shop], AbstractContextManager[tuple[str, int]]], outcome: Outcome
) -> None:
    topic, number, ids = shop.topic(), shop.number(), list[str]()
    with lose(shop) as (url, count), pytest.raises(CommitOutcomeUnknown) as caught:
        _run(buy, Order(shop, url, topic, number, count, ids))
    assert [caught.value.transaction_id] == ids
    wait_until(lambda: shop.outbox.outcome(ids[0], shop.engine) is not Outcome.OPEN)  # the server may not know yet
    assert shop.outbox.outcome(ids[0], shop.engine) is outcome
    assert shop.has(number) is (outcome is Outcome.COMMITTED)
    shop.site.wait_settled()
    assert [record.value for record in shop.site.read(topic)] == [str(number).encode()] * shop.has(number)
    assert {source for source, _ in shop.ops(ids[0])} == {OpSource.CHECKER}
    assert shop.outbox.outcome(ids[0], shop.engine) is outcome


@pytest.mark.parametrize("buy", BUYERS)
def test_commit_failed_for_sure(shop: Shop, buy: Buy) -> None:
    topic, number, ids = shop.topic(), shop.number(), list[str]()
    with pytest.raises((DBAPIError, psycopg.errors.CheckViolation)):
        _run(buy, Order(shop, shop.site.postgres_url, topic, number, FAILS, ids))
    assert not shop.has(number)
    assert shop.outbox.outcome(ids[0], shop.engine) is Outcome.ROLLED_BACK
    shop.assert_nothing(topic)
    assert shop.kinds(ids[0]) == {OpKind.ROLLBACK}


def test_a_transaction_without_messages_has_no_outcome_to_ask_for(shop: Shop) -> None:
    """It has no row: `outcome()` would call it rolled back, though it committed."""
    number = shop.number()

    def on_a_driver_connection() -> None:
        with psycopg.connect(proxy.url) as connection, shop.outbox.transaction(connection):
            connection.execute(f"INSERT INTO {shop.table} VALUES ({number}, 0)".encode())

    def on_a_core_connection() -> None:
        with _engine(proxy.url) as engine, engine.connect() as connection, shop.outbox.transaction(connection):
            connection.execute(text(f"INSERT INTO {shop.table} VALUES ({number}, 0)"))

    with LossyProxy(shop.site.postgres_url) as proxy, pytest.raises(psycopg.OperationalError):
        on_a_driver_connection()
    assert shop.has(number)
    number = shop.number()
    with LossyProxy(shop.site.postgres_url) as proxy, pytest.raises(DBAPIError):
        on_a_core_connection()
    assert shop.has(number)


def test_the_id_of_an_unknown_outcome_is_one_with_a_row(shop: Shop) -> None:
    """The first of two outboxes had all its messages struck."""
    topic, number = shop.topic(), shop.number()

    def buy(session: Session) -> str:
        shop.insert(session, number)
        nested = session.begin_nested()
        shop.publish(session, topic, "struck")
        nested.rollback()
        return billing.publish(session, Message(shop.site.topic(topic), "billed")).transaction_id

    with (
        shop.site.half_outbox("billing") as billing,
        LossyProxy(shop.site.postgres_url) as proxy,
        _engine(proxy.url) as engine,
        Session(engine) as session,
    ):
        transaction_id = buy(session)
        with pytest.raises(CommitOutcomeUnknown) as caught:
            session.commit()
    assert caught.value.transaction_id == transaction_id
    assert shop.outbox.outcome(transaction_id, shop.engine) is Outcome.COMMITTED
    assert shop.has(number)


def _publish(shop: Shop, session: Session, *, eager: bool = False) -> str:
    message = Message(shop.site.topic(shop.topic()), "v")
    return shop.outbox.publish(session, message, eager=eager).transaction_id


async def test_every_kind_of_connection_can_be_asked_on(shop: Shop) -> None:
    with shop.session() as session:
        committed = _publish(shop, session)
    with Session(shop.engine) as session:
        rolled_back = _publish(shop, session)
    expected = {committed: Outcome.COMMITTED, rolled_back: Outcome.ROLLED_BACK}
    for id_, outcome in expected.items():
        assert shop.outbox.outcome(id_, shop.engine) is outcome
        for autocommit in (True, False):
            with psycopg.connect(shop.site.postgres_url, autocommit=autocommit) as connection:
                assert shop.outbox.outcome(id_, connection) is outcome
                assert connection.autocommit is autocommit
                assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    outbox = AsyncHalfOutbox.over(shop.outbox)
    async with (
        _async_engine(shop.site.postgres_url) as engine,
        await psycopg.AsyncConnection.connect(shop.site.postgres_url) as other,
    ):
        for id_, outcome in expected.items():
            assert await outbox.outcome(id_, engine) is outcome
            assert await outbox.outcome(id_, other) is outcome
            assert not other.autocommit


def test_a_transaction_that_holds_its_lock_is_open(shop: Shop) -> None:
    with shop.session() as session:
        transaction_id = _publish(shop, session, eager=True)
        for _ in range(2):
            assert shop.outbox.outcome(transaction_id, shop.engine) is Outcome.OPEN
        assert transaction_id not in shop.site.rows()
    assert shop.outbox.outcome(transaction_id, shop.engine) is Outcome.COMMITTED


def test_whoever_asks_before_the_seal_decides(shop: Shop) -> None:
    """Absence of a row is no answer: the question makes it one, and COMMIT meets it."""
    number = shop.number()
    with Session(shop.engine) as session:
        shop.insert(session, number)
        transaction_id = _publish(shop, session)
        assert shop.outbox.outcome(transaction_id, shop.engine) is Outcome.ROLLED_BACK
        with pytest.raises(TransactionFenced):
            session.commit()
    assert not shop.has(number)
    assert shop.outbox.outcome(transaction_id, shop.engine) is Outcome.ROLLED_BACK


def test_what_may_have_been_purged_is_too_old(site: Site) -> None:
    site.create(partitions=1)
    with Shop(site) as shop:
        with shop.session() as session:
            committed = _publish(shop, session)
        old = make_transaction_id(time.time_ns() // 1_000_000 - 3_600_000, b"1234567890")
        recent = make_transaction_id(time.time_ns() // 1_000_000 - 600_000, b"1234567890")
        purged_until = str(time.time_ns() // 1_000_000 - 1_800_000)
        site.sql(f"INSERT INTO {site.tables.meta} VALUES ('purged_until', %s)", purged_until)
        assert shop.outbox.outcome(old, shop.engine) is Outcome.TOO_OLD
        assert old not in site.rows()
        assert shop.outbox.outcome(recent, shop.engine) is Outcome.ROLLED_BACK
        moved = f"UPDATE {site.tables.transaction} SET transaction_id = %s WHERE transaction_id = %s"
        site.sql(moved, old, recent)  # a rollback row, as for a copy of a half that came after the purge
        assert shop.outbox.outcome(old, shop.engine) is Outcome.TOO_OLD
        assert shop.outbox.outcome(committed, shop.engine) is Outcome.COMMITTED


async def test_a_question_that_cannot_be_asked(shop: Shop) -> None:
    id_ = make_transaction_id(time.time_ns() // 1_000_000, b"0123456789")
    with pytest.raises(UsageError, match=r"'42' is not a transaction id .*Give the id of a receipt"):
        shop.outbox.outcome("42", shop.engine)
    with psycopg.connect(shop.site.postgres_url) as connection:
        connection.execute("SELECT 1")
        with pytest.raises(UsageError, match=r"in a transaction\. Give outcome\(\) another connection"):
            shop.outbox.outcome(id_, connection)
    with shop.engine.connect() as core, pytest.raises(UsageError, match="is not supported"):
        shop.outbox.outcome(id_, core)  # type: ignore[arg-type]  # that is what is tested
    async with _async_engine(shop.site.postgres_url) as engine, engine.connect() as other:
        with pytest.raises(UsageError, match="is not supported"):
            await AsyncHalfOutbox.over(shop.outbox).outcome(id_, other)  # type: ignore[arg-type]  # that is tested
    assert id_ not in shop.site.rows()


def test_the_tables_are_missing(site: Site) -> None:
    id_ = make_transaction_id(time.time_ns() // 1_000_000, b"0123456789")
    with psycopg.connect(site.postgres_url) as connection:
        with pytest.raises(TableError, match="outbox table create"):
            site.half_outbox().outcome(id_, connection)
        assert connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
        assert not connection.autocommit


def test_a_reader_only_connection_can_be_asked_on(shop: Shop) -> None:
    """The rollback row needs to be written whatever the connection's defaults say."""
    with Session(shop.engine) as session:
        transaction_id = _publish(shop, session)
    options = "-c default_transaction_read_only=on -c default_transaction_isolation=serializable"
    with psycopg.connect(shop.site.postgres_url, options=options) as connection:
        assert shop.outbox.outcome(transaction_id, connection) is Outcome.ROLLED_BACK


def test_many_ask_at_once(shop: Shop) -> None:
    with Session(shop.engine) as session:
        transaction_id = _publish(shop, session)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: shop.outbox.outcome(transaction_id, shop.engine), range(16)))
    assert set(found) <= {Outcome.ROLLED_BACK, Outcome.OPEN}
    assert shop.outbox.outcome(transaction_id, shop.engine) is Outcome.ROLLED_BACK
