"""The application that is measured: one business row is updated, and others are told, or not, in several ways."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Self

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message, Outbox
from outbox._postgres.message_table import MessageTable
from tests.support.harness import Site

THREADS = 16
SMALL = 256
"""Bytes of an ordinary body."""

BUSINESS_ROWS = 10_000
STATEMENTS_AFTER = 2
"""Business statements after the message: the rest of a transaction, behind which an eager half travels."""

_TABLES = """
CREATE TABLE stock (id integer PRIMARY KEY, count integer NOT NULL) WITH (fillfactor = 50);
INSERT INTO stock SELECT number, 0 FROM generate_series(0, %d) AS number;
CREATE TABLE ordinary_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    key bytea,
    payload bytea,
    headers jsonb NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
"""

_UPDATE = text("UPDATE stock SET count = count + 1 WHERE id = :id")
_INSERT = text(
    "INSERT INTO ordinary_outbox (topic, key, payload, headers)"
    " VALUES (:topic, :key, :payload, CAST(:headers AS jsonb))"
)

Tell = Callable[[Session, bytes], object]
"""Tells others, in a session's transaction; the bytes are the message's key."""


class Rate(NamedTuple):
    """What a number of threads achieved together.

    Args:
        per_second: Transactions per second.
        cpu_us: CPU of this process for each transaction, µs: of all its threads, librdkafka's too.
        seconds: That each transaction took.
    """

    per_second: float
    cpu_us: float
    seconds: Sequence[float]


class Application:
    """One business table, an ordinary outbox table, and one outbox of each mode.

    Args:
        site: Its channel and callback tables exist.
    """

    def __init__(self, site: Site, topic: str) -> None:
        self.engine: Engine = site.engine(pool_size=64)
        self.outbox: HalfOutbox = site.half_outbox()
        self.table_outbox = Outbox("orders", tables=site.tables)
        self.topic = topic
        self.payload = b""
        self._random = random.Random(0)
        with site.connect() as connection:
            MessageTable(site.tables).create(connection)
            connection.execute((_TABLES % (BUSINESS_ROWS - 1)).encode())

    def use_payload(self, size: int) -> None:
        """Send bodies of so many bytes from now on; they are random, so that nobody gains by compressing them."""
        self.payload = self._random.randbytes(size)

    def no_messaging(self, session: Session, key: bytes) -> None:
        """Tell nobody: the application without messaging."""

    def insert(self, session: Session, key: bytes) -> None:
        """Insert a row into an ordinary outbox table, which a relay reads and deletes."""
        row = {"topic": self.topic, "key": key, "payload": self.payload, "headers": '{"type": "changed"}'}
        session.execute(_INSERT, row)

    def publish(self, session: Session, key: bytes) -> None:
        """`publish()`."""
        self.outbox.publish(session, self.message(key))

    def publish_eagerly(self, session: Session, key: bytes) -> None:
        """`publish()` with eager sending."""
        self.outbox.publish(session, self.message(key), eager=True)

    def publish_row(self, session: Session, key: bytes) -> None:
        """`publish()` in table mode."""
        self.table_outbox.publish(session, self.message(key))

    def message(self, key: bytes) -> Message:
        """Return a message with the present payload."""
        return Message(self.topic, self.payload, key, {"type": b"changed"})

    def update(self, session: Session, number: int) -> None:
        """Run a business statement that changes the row chosen by a number."""
        session.execute(_UPDATE, {"id": number % BUSINESS_ROWS})

    def transaction(
        self, tell: Tell, number: int, statements_after: int = 0, keys: Sequence[str] | None = None
    ) -> None:
        """One local transaction: UPDATE, tell, some more UPDATEs, COMMIT.

        Args:
            number: Chooses the rows; threads with numbers of their own do not meet.
            keys: Of its messages; None for one message, whose key is the number.
        """
        with Session(self.engine) as session, session.begin():
            self.update(session, number)
            for key in keys or [str(number)]:
                tell(session, key.encode())
            for _ in range(statements_after):
                self.update(session, number)

    def seconds_each(self, tell: Tell, count: int, statements_after: int = 0) -> list[float]:
        """Run transactions one after the other; the seconds that each took."""
        taken = []
        for number in range(count):
            began = time.perf_counter()
            self.transaction(tell, number, statements_after)
            taken.append(time.perf_counter() - began)
        return taken

    def rate(self, tell: Tell, threads: int, count: int) -> Rate:
        """Run transactions in several threads at once.

        Args:
            count: Transactions of each.
        """
        return self._together(tell, threads, lambda thread: range(thread, count * threads, threads))

    def rate_for(self, tell: Tell, threads: int, seconds: float) -> Rate:
        """Run transactions in several threads at once, for so long; those that have begun by then are ended."""

        def numbers(thread: int) -> Iterable[int]:
            end = time.perf_counter() + seconds
            return itertools.takewhile(lambda _: time.perf_counter() < end, itertools.count(thread, threads))

        return self._together(tell, threads, numbers)

    def _together(self, tell: Tell, threads: int, numbers: Callable[[int], Iterable[int]]) -> Rate:
        """Run transactions with each thread's own numbers; the clock runs from when all threads are there."""
        ready = threading.Barrier(threads + 1)
        taken: list[float] = []

        def work(thread: int) -> None:
            ready.wait()
            for number in numbers(thread):
                start = time.perf_counter()
                self.transaction(tell, number)
                taken.append(time.perf_counter() - start)

        with ThreadPoolExecutor(threads) as pool:
            running = [pool.submit(work, thread) for thread in range(threads)]
            ready.wait()
            began, cpu = time.perf_counter(), time.process_time()
            for each in running:
                each.result()
            seconds, used = time.perf_counter() - began, time.process_time() - cpu
        return Rate(len(taken) / seconds, used / len(taken) * 1e6, taken)

    def warm_up(self, tells: Sequence[Tell], seconds: float, threads: int) -> None:
        """Let everything warm up: connections, prepared statements, caches, and above all the broker's JVM."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for tell in tells:
                self.rate(tell, threads, 20)

    def __enter__(self) -> Self:
        """Use the application as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the outboxes that have connections."""
        self.outbox.close()
