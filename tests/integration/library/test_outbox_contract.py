"""One suite for every outbox: what an application sees is the same in memory and on a real Kafka and Postgres."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine, event, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import HalfOutbox, Message, MessageRefused
from outbox.async_half_outbox import AsyncHalfOutbox, AsyncHalfTransaction
from outbox.async_outbox import AsyncOutbox
from outbox.errors import UsageError
from outbox.message import HeadersInput
from outbox.testing import InMemoryHalfOutbox, InMemoryOutbox, assert_published
from outbox.transaction import HalfTransaction, Outcome
from tests.support.doors import sqlalchemy_url
from tests.support.harness import Site
from tests.support.places import PARTITIONS, MemoryPlace, Place, RealPlace, RowsPlace, let_sqlite_have_savepoints
from tests.support.servers import Servers

JoinMode = Literal["conditional_savepoint", "rollback_only", "create_savepoint", "control_fully"]
JOINED: list[JoinMode] = ["conditional_savepoint", "rollback_only", "create_savepoint"]


class _BadError(Exception):
    """What a test raises."""


MODES: dict[str, type[InMemoryOutbox | InMemoryHalfOutbox]] = {"rows": InMemoryOutbox, "halves": InMemoryHalfOutbox}
REAL = ("rows in Postgres", "halves in Kafka")
KINDS = (*(f"{mode} in memory, {database}" for mode in MODES for database in ("SQLite", "Postgres")), *REAL)


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "halves in Kafka":
        yield RealPlace(request.getfixturevalue("shop"))
        return
    if request.param == "rows in Postgres":
        servers: Servers = request.getfixturevalue("servers")
        with Site(servers.bootstrap_servers, servers.postgres_url) as site:
            yield RowsPlace(site)
        return
    kind = MODES[request.param.split()[0]]
    if request.param.endswith("SQLite"):
        file = tmp_path_factory.mktemp("sqlite") / Path("shop.db")
        engine = create_engine(f"sqlite:///{file}")
        let_sqlite_have_savepoints(engine)
        made = MemoryPlace(kind, engine, f"sqlite+aiosqlite:///{file}", None)
    else:
        servers = request.getfixturevalue("servers")
        url = sqlalchemy_url(servers.postgres_url, "psycopg")
        made = MemoryPlace(kind, create_engine(url), url, servers.postgres_url)
    yield made
    made.outbox.close()
    made.engine.dispose()


def test_rows_and_messages_commit_together(place: Place) -> None:
    first, second, number = place.topic(), place.topic(), place.number()
    with place.session() as session:
        place.insert(session, number)
        receipts = [place.publish(session, topic, what) for topic, what in ((first, "a"), (second, "b"), (first, "c"))]
    assert place.published(first) == ["a", "c"]
    assert place.published(second) == ["b"]
    first_position = 0 if place.has_halves else receipts[0].position  # a row's id
    assert [receipt.position - first_position for receipt in receipts] == [0, 1, 2]
    assert len({receipt.transaction_id for receipt in receipts}) == 1
    assert place.has(number)


def test_a_message_arrives_as_it_was_written(place: Place) -> None:
    topic = place.topic()
    headers: HeadersInput = [("type", "created"), ("é", b"\xff\x00"), ("type", None), ("empty", b"")]
    yesterday = time.time_ns() // 1_000_000 - 86_400_000  # Kafka removes what is older than the topic's retention
    with place.session() as session:
        receipt = place.outbox.publish(session, Message(topic, None, b"", headers, partition=2, timestamp=yesterday))
    published: Any = place.outbox if isinstance(place, MemoryPlace) else place.records(topic)
    (record,) = assert_published(published, topic, key=b"", value=None, headers={"type": "created"}, count=1)
    own = tuple(header for header in record.headers if not header[0].startswith("outbox-"))
    assert own == (("type", b"created"), ("é", b"\xff\x00"), ("type", None), ("empty", b""))
    assert (record.partition, record.timestamp, record.message_id) == (2, yesterday, receipt.message_id)


def test_transactions_of_one_key_keep_their_order(place: Place) -> None:
    topic = place.topic()
    for value in ("1", "2", "3"):
        with place.session() as session:
            place.publish(session, topic, value)
    assert place.published(topic) == ["1", "2", "3"]


def _raise(session: Session) -> None:
    with session:
        raise _BadError


def _leave(session: Session) -> None:
    with session:
        session.flush()


@pytest.mark.parametrize("end", [Session.rollback, Session.close, _raise, _leave])
def test_a_transaction_that_does_not_commit_publishes_nothing(place: Place, end: Callable[[Session], None]) -> None:
    topic, number, halves = place.topic(), place.number(), place.halves()
    session = Session(place.engine)
    place.insert(session, number)
    place.publish(session, topic, "never")
    try:
        end(session)
    except _BadError:
        assert end is _raise
    session.close()
    assert place.published(topic) == []
    assert place.halves() == halves
    assert not place.has(number)


def test_a_session_that_is_used_again(place: Place) -> None:
    topic, numbers = place.topic(), [place.number() for _ in range(4)]
    with Session(place.engine) as session:
        for index, number in enumerate(numbers):
            place.insert(session, number)
            place.publish(session, topic, str(index))
            if index % 2:
                session.rollback()
            else:
                session.commit()
    assert place.published(topic) == ["0", "2"]
    assert [place.has(number) for number in numbers] == [True, False, True, False]


def test_a_scoped_session(place: Place) -> None:
    topic = place.topic()
    scoped = scoped_session(sessionmaker(place.engine))
    place.outbox.publish(scoped, Message(topic, b"scoped"))
    scoped.commit()
    scoped.remove()
    assert place.published(topic) == ["scoped"]


def test_listeners_of_a_session_publish(place: Place) -> None:
    topic = place.topic()
    session = Session(place.engine)

    def at_flush(flushed: Session, _context: object, _instances: object) -> None:
        place.publish(flushed, topic, "flushed")

    event.listen(session, "before_flush", at_flush)
    event.listen(session, "before_commit", lambda committed: place.publish(committed, topic, "committing"))
    with session, session.begin():
        place.publish(session, topic, "first")
        session.add(_thing(place)(id=place.number(), count=0))
        event.listen(session, "after_flush", lambda flushed, _context: place.publish(flushed, topic, "after"))
    at_commit = ["committing", "flushed", "after"] if place.has_halves else ["flushed", "after", "committing"]
    assert place.published(topic) == ["first", *at_commit], "a row is inserted after a flush"


def _thing(place: Place) -> type[Any]:
    from sqlalchemy.ext.automap import automap_base  # noqa: PLC0415 - one test needs a mapped class

    base = automap_base()
    base.prepare(autoload_with=place.engine, reflection_options={"only": [place.table]})
    return base.classes[place.table]  # type: ignore[no-any-return]  # automap makes classes at run time


def test_eager_and_many(place: Place) -> None:
    topic = place.topic()
    eager: dict[str, Any] = {"eager": True} if place.has_halves else {}
    with place.session() as session:
        place.outbox.publish_many(session, [Message(topic, value, topic) for value in "ab"], **eager)
        place.outbox.publish(session, Message(topic, "c", topic), **eager)
    with Session(place.engine) as session:
        place.outbox.publish(session, Message(topic, "never", topic), **eager)
    assert place.published(topic) == ["a", "b", "c"]


def test_savepoints_released_rolled_back_and_nested(place: Place) -> None:
    topic, kept, struck = place.topic(), place.number(), place.number()
    with place.session() as session:
        place.publish(session, topic, "1")
        with session.begin_nested():
            place.insert(session, kept)
            place.publish(session, topic, "2")
            inner = session.begin_nested()
            place.publish(session, topic, "struck")
            inner.rollback()
            place.publish(session, topic, "3")
        outer = session.begin_nested()
        place.insert(session, struck)
        with session.begin_nested():
            place.publish(session, topic, "struck too")
        place.publish(session, topic, "and this")
        outer.rollback()
        place.publish(session, topic, "4")
    assert place.published(topic) == ["1", "2", "3", "4"]
    assert place.has(kept)
    assert not place.has(struck)


def test_a_savepoint_that_began_before_the_first_publication(place: Place) -> None:
    topic = place.topic()
    with place.session() as session:
        nested = session.begin_nested()
        place.publish(session, topic, "struck")
        nested.rollback()
        place.publish(session, topic, "after")
    assert place.published(topic) == ["after"]


def test_a_savepoint_ended_by_an_error_of_the_database(place: Place) -> None:
    topic, number = place.topic(), place.number()
    with place.session() as session:
        place.insert(session, number)
        place.publish(session, topic, "kept")
        nested = session.begin_nested()
        place.publish(session, topic, "struck")
        with pytest.raises(IntegrityError):
            place.insert(session, number)
        nested.rollback()
    assert place.published(topic) == ["kept"]


@pytest.mark.parametrize("mode", JOINED)
@pytest.mark.parametrize("commits", [True, False], ids=["outer commit", "outer rollback"])
def test_the_outer_transaction_of_a_joined_session_decides(place: Place, mode: JoinMode, *, commits: bool) -> None:
    topic, number, halves = place.topic(), place.number(), place.halves()
    with place.engine.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode=mode) as session:
            place.insert(session, number)
            place.publish(session, topic, mode)
            session.commit()
        assert place.halves() == halves, "the outer COMMIT sends them"
        if commits:
            outer.commit()
        else:
            outer.rollback()
            assert place.halves() == halves
    assert place.published(topic) == ([mode] if commits else [])
    assert place.has(number) is commits


def test_a_session_that_controls_the_outer_transaction_fully(place: Place) -> None:
    topic, number = place.topic(), place.number()
    with place.engine.connect() as connection:
        connection.begin()
        with Session(connection, join_transaction_mode="control_fully") as session:
            place.insert(session, number)
            place.publish(session, topic, "fully")
            session.commit()
    assert place.published(topic) == ["fully"]


def test_one_connection_for_several_outer_transactions(place: Place) -> None:
    topic = place.topic()
    with place.engine.connect() as connection:
        for value in ("a", "b"):
            with connection.begin(), Session(connection) as session:
                place.publish(session, topic, value)
                session.commit()
    assert place.published(topic) == ["a", "b"]


def _half(place: Place) -> HalfOutbox:
    if not isinstance(place.outbox, HalfOutbox):
        pytest.skip("in table mode an application ends its transactions itself")
    return place.outbox


def _publish_and_raise(tx: HalfTransaction, topic: str) -> None:
    tx.publish(Message(topic, "never", topic))
    raise _BadError


def _publish_three(place: Place, tx: HalfTransaction, topic: str) -> None:
    tx.publish(Message(topic, "1", topic))
    with tx.savepoint():
        tx.publish(Message(topic, "2", topic))
    with pytest.raises(_BadError), tx.savepoint():
        _publish_and_raise(tx, topic)
    tx.publish(Message(topic, "3", topic))
    if place.checks_topics:
        with pytest.raises(MessageRefused):
            tx.publish(Message(topic, "v", partition=PARTITIONS))


def test_a_core_connection(place: Place) -> None:
    outbox, topic, number = _half(place), place.topic(), place.number()
    with place.engine.connect() as connection:
        with outbox.transaction(connection) as tx:
            place.insert(connection, number)
            _publish_three(place, tx, topic)
        with pytest.raises(_BadError), outbox.transaction(connection) as tx:
            _publish_and_raise(tx, topic)
    assert place.published(topic) == ["1", "2", "3"]
    assert place.has(number)
    with pytest.raises(UsageError, match=r"has ended\. Publish inside the with block"):
        tx.publish(Message(topic, "too late"))


def test_core_connection_publishes_with_its_commit(place: Place) -> None:
    topic, number = place.topic(), place.number()
    with place.engine.begin() as connection:
        place.insert(connection, number)
        place.outbox.publish(connection, Message(topic, "1", topic))
        with connection.begin_nested() as nested:
            place.outbox.publish(connection, Message(topic, "struck", topic))
            nested.rollback()
        place.outbox.publish_many(connection, [Message(topic, "2", topic), Message(topic, "3", topic)])
    with pytest.raises(_BadError), place.engine.begin() as connection:
        _publish_on_connection_and_raise(place, connection, topic)
    assert place.published(topic) == ["1", "2", "3"]
    assert place.has(number)


def _publish_on_connection_and_raise(place: Place, connection: Connection, topic: str) -> None:
    place.outbox.publish(connection, Message(topic, "never", topic))
    raise _BadError


def test_core_connection_that_commits_as_it_goes_publishes(place: Place) -> None:
    """Its transaction begins at `publish()`, as at any first statement."""
    topic, number = place.topic(), place.number()
    with place.engine.connect() as connection:
        place.outbox.publish(connection, Message(topic, "1", topic))
        place.insert(connection, number)
        connection.commit()
        place.outbox.publish(connection, Message(topic, "never", topic))
        connection.rollback()
        place.outbox.publish(connection, Message(topic, "2", topic))
        connection.commit()
        place.outbox.publish(connection, Message(topic, "never", topic))
    assert place.published(topic) == ["1", "2"]
    assert place.has(number)


def test_core_connection_publishes_inside_outbox_transaction(place: Place) -> None:
    outbox, topic = _half(place), place.topic()
    with place.engine.connect() as connection, outbox.transaction(connection) as tx:
        tx.publish(Message(topic, "1", topic))
        outbox.publish(connection, Message(topic, "2", topic))
    assert place.published(topic) == ["1", "2"]


def _publish_and_roll_back(tx: HalfTransaction, topic: str, connection: psycopg.Connection[Any]) -> None:
    tx.publish(Message(topic, "never", topic))
    connection.rollback()
    connection.execute("SELECT 1")


def test_a_connection_of_psycopg(place: Place) -> None:
    outbox, connection = _half(place), place.connect()
    if connection is None:
        pytest.skip("not on this database")
    topic, number = place.topic(), place.number()
    with connection:
        with outbox.transaction(connection) as tx:
            connection.execute(f"INSERT INTO {place.table} VALUES ({number}, 0)".encode())
            _publish_three(place, tx, topic)
        with pytest.raises(UsageError, match="ended"), outbox.transaction(connection) as tx:
            _publish_and_roll_back(tx, topic, connection)
        with pytest.raises(_BadError), outbox.transaction(connection) as tx:
            _publish_and_raise(tx, topic)
    assert place.published(topic) == ["1", "2", "3"]
    assert place.has(number)


def test_what_is_refused_leaves_the_transaction_alone(place: Place) -> None:
    topic, number = place.topic(), place.number()
    with place.session() as session:
        place.insert(session, number)
        if place.checks_topics:
            with pytest.raises(MessageRefused, match="does not exist"):
                place.publish(session, "no-such-topic", "v")
            with pytest.raises(MessageRefused, match=f"has {PARTITIONS}"):
                place.outbox.publish(session, Message(topic, "v", partition=PARTITIONS))
        if place.has_halves:  # the relay discards a row that is too large for its topic
            with pytest.raises(MessageRefused, match="bytes"):
                place.publish(session, topic, "x" * 2_000_000)
        with pytest.raises(MessageRefused, match="reserved"):
            place.outbox.publish(session, Message(topic, "v", headers={"outbox-mine": "v"}))
        place.publish(session, topic, "kept")
    assert place.published(topic) == ["kept"]
    assert place.has(number)


def _too_large(place: Place) -> str:
    return "at most 1048588" if place.has_halves else "headers of a message have more than 1000000 bytes"


def test_message_with_too_many_headers_is_refused(place: Place) -> None:
    """Key, value and headers have 600,000 bytes; their lengths have as many again."""
    topic = place.topic()
    headers = [("hh", None)] * 300_000
    with place.session() as session:
        with pytest.raises(MessageRefused, match=_too_large(place)):
            place.outbox.publish(session, Message(topic, "v", headers=headers))
        place.publish(session, topic, "kept")
    assert place.published(topic) == ["kept"]


def test_message_is_refused_for_its_ordering_key(place: Place) -> None:
    """Each half carries the ordering key of 2,000 bytes, percent-encoded: 6,000."""
    if not place.has_halves:
        pytest.skip("a row has its own key")
    topic = place.topic()
    with place.session() as session:
        place.outbox.publish(session, Message(topic, "first", "\u00e4" * 1_000))
        with pytest.raises(MessageRefused, match=r"6000 for the ordering key.*at most 1048588.*first message smaller"):
            place.outbox.publish(session, Message(topic, "x" * 1_045_000, "k"))
    assert place.published(topic) == ["first"]


def test_publishing_after_the_seal_is_refused(place: Place) -> None:
    if isinstance(place, RowsPlace):
        pytest.skip("a row can be inserted until COMMIT is sent")
    topic, number = place.topic(), place.number()

    def too_late(_connection: Connection) -> None:
        place.publish(session, topic, "too late")

    with place.engine.connect() as connection:
        outer, session = connection.begin(), Session(connection)
        place.insert(session, number)
        place.publish(session, topic, "first")
        event.listen(place.engine, "commit", too_late, once=True)
        with pytest.raises(UsageError, match="already being committed"):
            outer.commit()
    assert place.published(topic) == []
    assert not place.has(number)


def test_two_phases_commit_rows(place: Place) -> None:
    """On any number of engines."""
    if place.has_halves or place.engine.dialect.name == "sqlite":
        pytest.skip("halves are refused, and SQLite has no two phases")
    topic, other = place.topic(), {"bind": create_engine(place.engine.url, poolclass=NullPool)}
    with Session(place.engine, twophase=True) as session:
        for value, end in (("1", session.commit), ("never", session.rollback), ("2", session.commit)):
            place.publish(session, topic, value)
            session.execute(text("SELECT 1"), bind_arguments=other)
            end()
    with place.engine.connect() as connection:
        for value in ("3", "4"):
            with connection.begin_twophase():
                place.outbox.publish(connection, Message(topic, value, topic))
    assert place.published(topic) == ["1", "2", "3", "4"]


def test_two_phases_are_refused_for_halves(place: Place) -> None:
    if not place.has_halves:
        pytest.skip("a row commits with whatever commits its transaction")
    topic = place.topic()
    expected = r"twophase=True.*Use another session"
    with Session(place.engine, twophase=True) as session, pytest.raises(UsageError, match=expected):
        place.publish(session, topic, "v")
    with place.engine.connect() as connection, connection.begin():
        with pytest.raises(UsageError, match="Commit it or roll it back first"), _half(place).transaction(connection):
            pass
        connection.rollback()


@pytest.mark.parametrize("publish_first", [True, False])
def test_one_transaction_over_two_connections_is_refused(place: Place, *, publish_first: bool) -> None:
    topic, number, halves = place.topic(), place.number(), place.halves()
    there, other = Table("there", MetaData(), Column("id", Integer)), create_engine("sqlite://")
    there.create(other)

    def buy() -> None:
        with Session(place.engine, binds={there: other}) as session, session.begin():
            place.insert(session, number)
            if publish_first:
                place.publish(session, topic, "never")
            session.execute(there.insert().values(id=number))
            if not publish_first:
                place.publish(session, topic, "never")

    with pytest.raises(UsageError, match=r"Publish with a session of one database.*postgresql_readonly"):
        buy()
    other.dispose()
    assert (place.published(topic), place.has(number), place.halves()) == ([], False, halves)


def test_a_closed_outbox_refuses(place: Place) -> None:
    topic = place.topic()
    with place.other_outbox("closing") as closed, place.session() as session:
        closed.publish(session, Message(topic, "v", topic))
    with Session(place.engine) as session, pytest.raises(UsageError, match="closed"):
        closed.publish(session, Message(topic, "v"))


def test_two_outboxes_in_one_transaction(place: Place) -> None:
    ours, theirs = place.topic(), place.topic()
    with place.other_outbox("billing") as billing:
        with place.session() as session:
            first = place.publish(session, ours, "from orders")
            nested = session.begin_nested()
            billing.publish(session, Message(theirs, "struck", theirs))
            nested.rollback()
            second = billing.publish(session, Message(theirs, "from billing", theirs))
        assert (first.transaction_id != second.transaction_id) is place.has_halves
        assert place.published(ours) == ["from orders"]
        assert place.published(theirs, billing) == ["from billing"]


def test_outcomes(place: Place) -> None:
    topic = place.topic()
    with place.session() as session:
        committed = place.publish(session, topic, "v")
    with Session(place.engine) as session:
        rolled_back = place.publish(session, topic, "never")
        if not place.has_halves:  # who asks for that of halves fences them
            assert place.outbox.outcome(rolled_back.transaction_id, place.engine) is Outcome.OPEN
    assert place.outbox.outcome(committed.transaction_id, place.engine) is Outcome.COMMITTED
    assert place.outbox.outcome(rolled_back.transaction_id, place.engine) is Outcome.ROLLED_BACK
    with place.session() as session:
        nested = session.begin_nested()
        struck = place.publish(session, topic, "struck")
        nested.rollback()
    if not place.has_halves:  # there is no row to prove anything
        assert place.outbox.outcome(struck.transaction_id, place.engine) is Outcome.TOO_OLD
    with pytest.raises(UsageError, match="'x' is not a transaction id"):
        place.outbox.outcome("x", place.engine)


@asynccontextmanager
async def _async(place: Place) -> AsyncIterator[tuple[AsyncOutbox | AsyncHalfOutbox, AsyncEngine]]:
    engine = place.async_engine()
    try:
        outbox = place.outbox
        yield AsyncHalfOutbox.over(outbox) if isinstance(outbox, HalfOutbox) else AsyncOutbox.over(outbox), engine
    finally:
        await engine.dispose()


async def test_async_sessions(place: Place) -> None:
    topic, number, struck = place.topic(), place.number(), place.number()
    async with _async(place) as (outbox, engine):
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(place.insertion(number))
            await outbox.publish(session, Message(topic, "1", topic))
            nested = await session.begin_nested()
            await session.execute(place.insertion(struck))
            await outbox.publish(session, Message(topic, "struck", topic))
            await nested.rollback()
            async with session.begin_nested():
                await outbox.publish_many(session, [Message(topic, "2", topic)])
        async with AsyncSession(engine) as session:
            await outbox.publish(session, Message(topic, "never", topic))
    assert place.published(topic) == ["1", "2"]
    assert place.has(number)
    assert not place.has(struck)


async def test_async_joined_sessions(place: Place) -> None:
    topic = place.topic()
    async with _async(place) as (outbox, engine):
        for commits in (True, False):
            async with engine.connect() as connection:
                outer = await connection.begin()
                async with AsyncSession(connection) as session:
                    await outbox.publish(session, Message(topic, str(commits), topic))
                    await session.commit()
                halves = place.halves()
                await (outer.commit() if commits else outer.rollback())
                assert commits or place.halves() == halves
    assert place.published(topic) == ["True"]


async def _publish_and_raise_in(
    block: AbstractAsyncContextManager[AsyncHalfTransaction | None], tx: AsyncHalfTransaction | None, topic: str
) -> None:
    async with block as opened:
        inner = tx or opened
        assert inner is not None
        await inner.publish(Message(topic, "never", topic))
        raise _BadError


async def test_async_transactions(place: Place) -> None:
    outbox = AsyncHalfOutbox.over(_half(place))
    topic, number = place.topic(), place.number()

    async def publish(connection: AsyncConnection | psycopg.AsyncConnection[Any]) -> None:
        async with outbox.transaction(connection) as tx:
            await tx.publish(Message(topic, "1", topic))
            with pytest.raises(_BadError):
                await _publish_and_raise_in(tx.savepoint(), tx, topic)
            await tx.publish(Message(topic, "2", topic))
        with pytest.raises(_BadError):
            await _publish_and_raise_in(outbox.transaction(connection), None, topic)

    async with _async(place) as (_, engine), AsyncExitStack() as stack:
        connection = await stack.enter_async_context(engine.connect())
        await publish(connection)
        async with outbox.transaction(connection):
            await connection.execute(place.insertion(number))
        blocking = place.connect()
        if blocking is not None:
            dsn = blocking.info.dsn + f" password={blocking.info.password}"
            blocking.close()
            await publish(await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn)))
    assert place.published(topic) in (["1", "2"], ["1", "2"] * 2)
    assert place.has(number)


async def test_async_core_connection_publishes_with_its_commit(place: Place) -> None:
    topic, number = place.topic(), place.number()
    async with _async(place) as (outbox, engine):
        async with engine.begin() as connection:
            await connection.execute(place.insertion(number))
            await outbox.publish_many(connection, [Message(topic, "1", topic), Message(topic, "2", topic)])
            with pytest.raises(MessageRefused, match=_too_large(place)):
                await outbox.publish(connection, Message(topic, "v", headers=[("hh", None)] * 300_000))
        async with engine.connect() as connection:
            await outbox.publish(connection, Message(topic, "never", topic))
            await connection.rollback()
    assert place.published(topic) == ["1", "2"]
    assert place.has(number)
