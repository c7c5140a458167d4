"""`Inbox.run()` and `run_async()`: what becomes of messages that cannot be handled, and who is to blame."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any
from unittest.mock import DEFAULT, AsyncMock, Mock

import asyncpg
import psycopg
import psycopg2
import pytest
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from outbox._postgres.inbox_table import InboxTable
from outbox.errors import ConfigurationError, PublishFailed, UsageError
from outbox.inbox import Inbox
from tests.support.harness import Site, wait_until

WAYS = ("confluent-kafka", "aiokafka")


@dataclass
class Work:
    """A topic, an inbox, a table of effects, and a loop over them in a thread."""

    site: Site
    way: str
    fails: Callable[[str], Exception | None] = lambda _: None
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.site.create_tables(InboxTable)
        self.site.sql(f"CREATE TABLE IF NOT EXISTS {self.site.name}_effect (what text)")
        self.site.create_topics("orders", "dead", partitions=1)
        self.topic, self.dead = self.site.topic("orders"), self.site.topic("dead")
        self.inbox = Inbox(f"{self.site.name}_billing", self.site.tables)
        self.insert = text(f"INSERT INTO {self.site.name}_effect VALUES (:what)")

    def write(self, *values: str, **headers: bytes) -> None:
        for value in values:
            given = headers or {"outbox-id": f"{value}/0".encode()}
            self.site.produce(self.topic, value, value, headers=list(given.items()))

    @contextmanager
    def running(self, **options: Any) -> Iterator["Future[None]"]:
        """Run the loop in the block; an error that ended it comes out of the block."""
        with ThreadPoolExecutor(1) as pool:
            stop = threading.Event()
            done = pool.submit(self.run, stop, **{"first_pause_seconds": 0.05, **options})
            try:
                yield done
            finally:
                stop.set()
            done.result(60)

    def run(self, stop: threading.Event, topic: str | None = None, **options: Any) -> None:
        more, topics = options.pop("more", {}), topic or self.topic
        if self.way == "aiokafka":
            asyncio.run(self._run_async(stop, topics, more, options))
        else:
            kafka = {**self.site.kafka(), "session.timeout.ms": 6_000, "max.poll.interval.ms": 6_000}
            kafka |= {name: value for name, value in more.items() if "." in name}
            self.inbox.run(self.site.engine().begin, self._handle, kafka, topics, stop=stop, **options)

    async def _run_async(self, stop: threading.Event, topics: str, more: dict[str, Any], options: Any) -> None:
        asked, engine = asyncio.Event(), async_engine(self.site)
        watch = asyncio.ensure_future(asyncio.to_thread(stop.wait))
        watch.add_done_callback(lambda _: asked.set())
        kafka = {
            "bootstrap_servers": self.site.bootstrap_servers,
            "session_timeout_ms": 6_000,
            "max_poll_interval_ms": 6_000,
            **{name: value for name, value in more.items() if "_" in name},
        }
        try:
            await self.inbox.run_async(engine.begin, self._handle_async, kafka, topics, stop=asked, **options)
        finally:
            stop.set()
            await engine.dispose()
            assert not [task for task in asyncio.all_tasks() if "/aiokafka/" in str(task)], "each connection has one"

    def _handle(self, connection: Any, message: Any) -> None:
        what = message.value().decode()
        connection.execute(self.insert, {"what": what})
        self._fail(what)

    async def _handle_async(self, connection: Any, record: Any) -> None:
        what = record.value.decode()
        await connection.execute(self.insert, {"what": what})
        self._fail(what)

    def _fail(self, what: str) -> None:
        self.calls.append(what)
        if (error := self.fails(what)) is not None:
            raise error

    def effects(self) -> list[str]:
        return [what for (what,) in self.site.sql(f"SELECT what FROM {self.site.name}_effect ORDER BY ctid")]

    def committed(self) -> int:
        with closing(Consumer({**self.site.kafka(), "group.id": self.inbox.group})) as consumer:
            (place,) = consumer.committed([TopicPartition(self.topic, 0)], 20)
            return place.offset


def async_engine(site: Site) -> AsyncEngine:
    return create_async_engine(
        site.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=NullPool
    )


@pytest.fixture(params=WAYS)
def work(site: Site, request: pytest.FixtureRequest) -> Work:
    return Work(site, request.param)


def test_message_has_one_effect_and_its_offset_comes_after(work: Work) -> None:
    work.write("tea", "salt", "tea")  # the third is the first once more
    with work.running():
        wait_until(lambda: work.effects() == ["tea", "salt"])
    assert work.calls == ["tea", "salt"]
    assert work.committed() == 3
    with work.running():
        work.write("oil")
        wait_until(lambda: work.effects() == ["tea", "salt", "oil"])


def test_message_that_always_fails_becomes_a_dead_letter(work: Work) -> None:
    work.write("tea", "bad", "salt")
    work.fails = lambda what: ValueError("no such tea") if what == "bad" else None
    with work.running(dead_letters=work.dead, attempts=3):
        wait_until(lambda: work.effects() == ["tea", "salt"])
    assert work.calls == ["tea", "bad", "bad", "bad", "salt"]
    (letter,) = work.site.wait_visible(1, "dead")
    assert (letter.key, letter.value) == (b"bad", b"bad")
    assert dict(letter.headers) == {
        "outbox-id": b"bad/0",
        "dead-letter-topic": work.topic.encode(),
        "dead-letter-partition": b"0",
        "dead-letter-offset": b"1",
        "dead-letter-group": work.inbox.group.encode(),
        "dead-letter-attempts": b"3",
        "dead-letter-reason": b"ValueError: no such tea",
    }
    work.fails = lambda _: None  # mended
    with work.running(topic=work.dead):
        wait_until(lambda: work.effects() == ["tea", "salt", "bad"])


def test_error_without_a_dead_letter_topic_ends_the_call(work: Work) -> None:
    work.write("tea", "bad")
    work.fails = lambda what: ValueError("no such tea") if what == "bad" else None
    with pytest.raises(ValueError, match="no such tea"), work.running(attempts=2):
        wait_until(lambda: work.calls.count("bad") == 2)
    assert work.effects() == ["tea"]
    work.fails = lambda _: None
    with work.running():
        wait_until(lambda: work.effects() == ["tea", "bad"])


def test_handler_that_rolls_back_has_handled_nothing(work: Work) -> None:
    """COMMIT would report nothing, and the message be lost."""
    work.insert = text("ROLLBACK")
    work.write("tea")
    with pytest.raises(UsageError, match="rolled its transaction back"), work.running() as done:
        wait_until(done.done)


def test_outage_of_the_database_counts_as_no_attempt(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    """It lasts longer than a member may go without a poll."""
    passing = [psycopg.errors.AdminShutdown(), psycopg.errors.SerializationFailure(), ConnectionResetError()]
    passing += [psycopg2.OperationalError(), psycopg.errors.ReadOnlySqlTransaction(), PublishFailed()]
    failures = iter([*passing, *(psycopg.OperationalError() for _ in range(3))])
    away = chain([OSError("Multiple exceptions"), TimeoutError()], repeat(DEFAULT))
    work.fails = lambda _: next(failures, None)
    work.inbox.once = Mock(wraps=work.inbox.once, side_effect=away)  # type: ignore[method-assign]
    work.write("tea")
    with caplog.at_level(logging.INFO), work.running(attempts=1, first_pause_seconds=0.01) as done:
        wait_until(lambda: done.done() or work.effects() == ["tea"], timeout=180)
        assert len(work.calls) == 10
    assert not [line for line in caplog.messages if "poll interval" in line]


def test_record_without_an_id_becomes_a_dead_letter_at_once(work: Work) -> None:
    work.write("foreign", other=b"1")
    work.write("tea")
    with work.running(dead_letters=work.dead):
        wait_until(lambda: work.effects() == ["tea"])
    (letter,) = work.site.wait_visible(1, "dead")
    assert (dict(letter.headers)["dead-letter-reason"] or b"").startswith(b"UsageError: record ")


def test_dead_letter_that_is_too_large_only_says_where_it_is(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    """Kafka refuses even that while the topic's limit is smaller still."""
    work.site.set_topic(work.dead, "max.message.bytes", "20")
    work.fails = lambda what: ValueError() if "bad" in what else None
    work.site.produce(work.topic, "bad" * 1_000, "bad", headers=[("outbox-id", b"bad/0")])
    work.write("tea")
    with work.running(dead_letters=work.dead, attempts=1):
        wait_until(lambda: sum(f"dead letters, {work.dead}: " in line for line in caplog.messages) > 3)
        assert work.effects() == []
        work.site.set_topic(work.dead, "max.message.bytes", "1000")
        wait_until(lambda: work.effects() == ["tea"])
    (letter,) = work.site.wait_visible(1, "dead")
    assert (letter.key, letter.value) == (None, b"")
    reason = f"too large for this topic, it is only at {work.topic}/0/0: ValueError: "
    assert dict(letter.headers)["dead-letter-reason"] == reason.encode()
    assert f"Message {work.topic}/0/0 is an empty dead letter in topic {work.dead}" in caplog.messages
    assert not [line for line in caplog.messages if "again in 0.0 s" in line]
    with pytest.raises(UsageError, match="has 0 headers 'outbox-id'"), work.running(topic=work.dead) as done:
        wait_until(done.done)


def test_missing_topic_of_dead_letters_ends_the_call(work: Work) -> None:
    """It is missing when the call begins, or is deleted later."""
    work.write("tea")
    with pytest.raises(ConfigurationError, match=r"none' of `dead_letters` does not exist, .*: create it"):
        work.run(threading.Event(), dead_letters=work.site.topic("none"))
    assert work.calls == []
    work.fails = lambda what: ValueError() if what == "bad" else None
    gone = pytest.raises(ConfigurationError, match=f"Topic '{work.dead}' of")
    with gone, work.running(dead_letters=work.dead) as done:
        wait_until(lambda: work.effects() == ["tea"])
        work.site.delete_topics(work.dead)
        work.write("bad")
        wait_until(done.done)


def test_message_of_a_lost_partition_is_left_to_its_next_owner(work: Work) -> None:
    """The first consumer waits between attempts when the second one comes, which gets one of two partitions."""
    work.site.create_topics("pair", partitions=2)
    pair = work.site.topic("pair")
    for number, value in enumerate(("tea", "salt")):
        work.site.produce(pair, value, value, partition=number, headers=[("outbox-id", value.encode())])
    work.fails = lambda _: ValueError("of the first consumer")
    second = replace(work, fails=lambda _: None, calls=[])
    with work.running(topic=pair, attempts=1_000, first_pause_seconds=0.5):
        wait_until(lambda: work.calls != [])
        with second.running(topic=pair):
            wait_until(lambda: len(work.effects()) == 1, timeout=60)
            work.fails = lambda _: None
            wait_until(lambda: sorted(work.effects()) == ["salt", "tea"], timeout=60)


def test_wrong_setup_ends_the_call_and_blames_no_message(work: Work) -> None:
    work.write("tea")
    given = {"enable.auto.commit": False, "enable_auto_commit": False, "group.id": "x", "group_id": "x"}
    with pytest.raises(ConfigurationError, match="is read itself"):
        work.run(threading.Event(), dead_letters=work.topic)
    with pytest.raises(ConfigurationError, match=r"`attempts` is 0, .* Give 1 or more\."):
        work.run(threading.Event(), attempts=0)
    with pytest.raises(ConfigurationError, match=r"sets enable.auto.commit, group.id itself\. Remove it"):
        work.run(threading.Event(), more=given)
    work.site.sql(f"DROP TABLE {InboxTable(work.site.tables).full_name}")
    with pytest.raises(ConfigurationError, match="does not exist in this database"):
        work.run(threading.Event(), dead_letters=work.dead)
    assert work.site.read("dead") == []


@contextmanager
def _hiding(site: Site) -> Iterator[psycopg.Connection]:
    with suppress(Exception), closing(psycopg.connect(site.postgres_url)) as connection:
        yield connection


@pytest.mark.parametrize(
    ("begin_of", "why"),
    [
        (lambda site: site.connect, "the id would be committed alone"),
        (lambda site: sessionmaker(site.engine()), "it gives Session outside of a transaction"),
        (lambda site: lambda: closing(psycopg.connect(site.postgres_url)), "its block ends without COMMIT"),
        (lambda site: lambda: _hiding(site), "its block hides exceptions"),
        (lambda site: async_engine(site).begin, "to run_async"),
    ],
)
def test_what_would_commit_no_effect_ends_the_call(site: Site, begin_of: Callable[[Site], Any], why: str) -> None:
    work = Work(site, "confluent-kafka")
    work.write("tea")
    with pytest.raises(UsageError, match=why):
        work.inbox.run(begin_of(site), lambda *_: None, site.kafka(), work.topic, stop=threading.Event())


async def test_a_pool_of_asyncpg_ends_the_call(site: Site) -> None:
    work = Work(site, "aiokafka")
    work.write("tea")
    kafka, stop = {"bootstrap_servers": site.bootstrap_servers}, asyncio.Event()
    async with asyncpg.create_pool(site.postgres_url, min_size=1, max_size=1) as pool:

        @asynccontextmanager
        async def begun() -> AsyncIterator[Any]:
            async with pool.acquire() as connection:
                await connection.transaction().start()
                yield connection

        for begin in (pool, pool.acquire, begun):
            with pytest.raises(UsageError, match="for asyncpg a function"):
                await work.inbox.run_async(begin, AsyncMock(), kafka, work.topic, stop=stop)
