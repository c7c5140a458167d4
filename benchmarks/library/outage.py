"""Kafka frozen by SIGSTOP under auto mode: how long transactions take, whether they fail, what is delivered later."""

from __future__ import annotations

import itertools
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from psycopg import sql
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from benchmarks.application import THREADS, Application
from benchmarks.figures import Figure, Target
from benchmarks.library.throughput import relays
from benchmarks.spread import percentile
from benchmarks.steady import RATE
from outbox import Message, Outbox
from outbox.errors import OutboxError
from outbox.recorder import NoRecorder
from stack import Stack
from tests.support.harness import Site, wait_until

KEYS = 200
"""Each gets a message a second, as a number that its business row counts."""

BEFORE = 1 / 3
"""Of the outage's length: how long the application is measured before it."""

_WARM_UP_SECONDS = 5.0
"""Relay and checker have begun by then."""

_TOPIC = "outage"
_BACK_SECONDS = 120.0
_AFTER_SECONDS = 3.0
"""The application goes on for so long after it has returned to half messages."""

_COUNT = text("UPDATE stock SET count = count + 1 WHERE id = :id RETURNING count")
_COUNTS = sql.SQL("SELECT id, count FROM stock WHERE id < {}")


class Done(NamedTuple):
    """One transaction.

    Args:
        at: When it began, s of the monotonic clock.
        seconds: That it took.
        failed: Whether it raised an error.
    """

    at: float
    seconds: float
    failed: bool


class Outage(NamedTuple):
    """What came of it.

    Args:
        warm_up: Transactions that were run first.
        before: Those before it.
        during: Those that began in it.
        after: Those that began later.
        circuit_seconds: From its end until the application sent half messages again.
        caught_up_seconds: From its end until all was delivered, while the application went on.
        misplaced: Messages that are missing, came again, or came behind a later one of their key.
    """

    warm_up: Sequence[Done]
    before: Sequence[Done]
    during: Sequence[Done]
    after: Sequence[Done]
    circuit_seconds: float
    caught_up_seconds: float
    misplaced: int


class Circuit(NoRecorder):
    """Notes when half messages go to Kafka again."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def circuit_opened(self, group: str) -> None:
        """Note it."""
        del group
        self.closed.clear()

    def circuit_closed(self, group: str) -> None:
        """Note it."""
        del group
        self.closed.set()


class Load:
    """Transactions at a steady rate, each with the next number of a key, whose business row it locks first.

    Args:
        application: Its business table is used.
        outbox: In auto mode.
        topic: The real topic.
    """

    def __init__(self, application: Application, outbox: Outbox, topic: str) -> None:
        self.done: list[Done] = []
        self._application = application
        self._outbox = outbox
        self._topic = topic
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run transactions during the block."""
        began = time.monotonic()
        with ThreadPoolExecutor(THREADS) as pool:
            working = [pool.submit(self._work, began, number) for number in range(THREADS)]
            try:
                yield
            finally:
                self._ended.set()
            for each in working:
                each.result()

    def _work(self, began: float, first: int) -> None:
        for number in itertools.count(first, THREADS):
            if self._ended.wait(max(0.0, began + number / RATE - time.monotonic())):
                return
            at = time.monotonic()
            failed = not self._commits(number % KEYS)
            self.done.append(Done(at, time.monotonic() - at, failed))

    def _commits(self, key: int) -> bool:
        try:
            with Session(self._application.engine) as session, session.begin():
                count = session.execute(_COUNT, {"id": key}).scalar_one()
                self._outbox.publish(session, Message(self._topic, self._body(count), str(key)))
        except (OutboxError, SQLAlchemyError):
            return False
        return True

    def _body(self, count: int) -> bytes:
        """Return the number, and the rest of an ordinary body."""
        return str(count).encode() + b" " + self._application.payload


def measure_outage(stack: Stack, site: Site, application: Application, seconds: float) -> list[Figure]:
    """Measure transactions in auto mode while Kafka's process is frozen, beside those before; once.

    Args:
        stack: Its Kafka is stopped.
        site: Where; relay and checker are started here.
        application: Warm.
        seconds: How long Kafka is stopped.

    Raises:
        AssertionError: The application did not return to half messages, or not all was delivered.
    """
    found = _outage(stack, site, application, seconds)
    before, during = ([done.seconds * 1_000 for done in some] for some in (found.before, found.during))
    everything = [*found.warm_up, *found.before, *found.during, *found.after]
    title = f"Kafka frozen (SIGSTOP) for {seconds:g} s under auto mode, {RATE} transactions/s"

    def figure(
        name: str, words: str, unit: str, baseline: str, ours: float, beside: float, *, target: Target | None = None
    ) -> Figure:
        return Figure(f"auto_outage_{name}", f"{title}: {words}", unit, baseline, [ours], [beside], target)

    none = Target("ours", "at most", 0)
    return [
        figure(
            "p99_ms_vs_before",
            "a transaction, p99",
            "ms",
            "before it",
            percentile(during, 99),
            percentile(before, 99),
            target=Target("ratio", "at most", 3),
        ),
        figure(
            "p50_ms_vs_before", "a transaction, p50", "ms", "before it", percentile(during, 50), percentile(before, 50)
        ),
        figure("longest_ms_vs_before", "the longest transaction", "ms", "before it", max(during), max(before)),
        figure(
            "failed",
            "transactions that failed",
            "transactions",
            "all",
            sum(done.failed for done in everything),
            len(everything),
            target=none,
        ),
        figure(
            "misplaced",
            "messages missing, duplicated or out of order after it",
            "messages",
            "all",
            found.misplaced,
            len(everything),
            target=none,
        ),
        figure(
            "half_messages_again_seconds",
            "from its end until half messages are sent again",
            "s",
            "the outage",
            found.circuit_seconds,
            seconds,
        ),
        figure(
            "caught_up_seconds",
            "from its end until no row waits, while the application goes on",
            "s",
            "the outage",
            found.caught_up_seconds,
            seconds,
        ),
    ]


def _outage(stack: Stack, site: Site, application: Application, seconds: float) -> Outage:
    site.create_topics(_TOPIC)
    circuit = Circuit()
    with relays(site) as running, site.outbox(mode="auto", recorder=circuit) as outbox, site.connect() as connection:
        site.checker()
        outbox.ping()
        load = Load(application, outbox, site.topic(_TOPIC))
        counts = dict(connection.execute(_COUNTS.format(KEYS)).fetchall())
        with load.running():
            time.sleep(_WARM_UP_SECONDS)
            began = time.monotonic()
            time.sleep(seconds * BEFORE)
            stopped = time.monotonic()
            with _stopped(stack):
                time.sleep(seconds)
            ended = time.monotonic()
            wait_until(circuit.closed.is_set, _BACK_SECONDS, lambda: "the circuit is still open")
            circuit_seconds = time.monotonic() - ended
            wait_until(running.has_no_rows, _BACK_SECONDS, site.logs)
            caught_up_seconds = time.monotonic() - ended
            time.sleep(_AFTER_SECONDS)
        running.wait_for_relay()
        committed = dict(connection.execute(_COUNTS.format(KEYS)).fetchall())
    visible = [(record.key, record.value) for record in site.read(_TOPIC)]
    warm_up, before, during, after = split(load.done, (began, stopped, ended))
    return Outage(
        warm_up,
        before,
        during,
        after,
        circuit_seconds,
        caught_up_seconds,
        misplaced(visible, {str(key): range(counts[key] + 1, count + 1) for key, count in committed.items()}),
    )


@contextmanager
def _stopped(stack: Stack) -> Iterator[None]:
    """Freeze Kafka's process for the block: it answers nothing, and refuses no connection."""
    stack.kafka.pause()
    try:
        yield
    finally:
        stack.kafka.resume()


def split(done: Iterable[Done], moments: Sequence[float]) -> list[list[Done]]:
    """Return the transactions that began before the first moment, from there to the second, and so on."""
    found: list[list[Done]] = [[] for _ in range(len(moments) + 1)]
    for each in done:
        found[bisect_right(moments, each.at)].append(each)
    return found


def misplaced(visible: Iterable[tuple[bytes | None, bytes | None]], expected: Mapping[str, Sequence[int]]) -> int:
    """Return how many messages are missing, came again, or came behind a later one of their key.

    Args:
        visible: Key and value of each record, by partition and offset; a value begins with its number.
        expected: The numbers of each key.
    """
    came: dict[str, list[int]] = defaultdict(list)
    for key, value in visible:
        came[(key or b"").decode()].append(int((value or b"").split(b" ", 1)[0]))
    return sum(_misplaced(came[key], expected.get(key, ())) for key in came.keys() | expected.keys())


def _misplaced(came: Sequence[int], expected: Sequence[int]) -> int:
    """Return the same for one key: a number that is not above all before it came again, or too late."""
    highest = itertools.accumulate(came, max, initial=-1)
    late = sum(number <= before for number, before in zip(came, highest, strict=False))
    return late + len(set(expected) ^ set(came))
