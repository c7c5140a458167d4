"""An outage of Kafka costs a service its writes, and nothing else."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message, Outbox
from outbox._publish.waiting import Budget
from outbox.errors import PublishFailed
from outbox.recorder import NoRecorder
from stack import Stack
from tests.support.harness import Site, wait_until
from tests.support.message_rows import assert_exactly, create, relay_settings, wait_empty, waiting

ROOT = Path(__file__).parents[3]


class Circuits(NoRecorder):
    def __init__(self) -> None:
        self.opened = threading.Event()
        self.closed = threading.Event()

    def circuit_opened(self, service: str) -> None:
        del service
        self.opened.set()

    def circuit_closed(self, service: str) -> None:
        del service
        self.closed.set()


class _Swallowing:
    def __init__(self) -> None:
        self.halves = 0

    def produce(self, *_: object) -> None:
        self.halves += 1


def _sell(engine_site: Site, outbox: HalfOutbox) -> None:
    with Session(engine_site.engine()) as session, session.begin():
        outbox.publish(session, Message(engine_site.topic("orders"), "x", key="k"))


def test_unacknowledged_half_opens_circuit_until_kafka_answers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is open, nothing reaches Kafka and no connection leaves the pool; a real probe closes it."""
    site.create("orders")
    circuits, answers = Circuits(), threading.Event()
    with site.half_outbox(publish_timeout_seconds=20.0, recorder=circuits) as outbox:
        _sell(site, outbox)
        sender = outbox._sender
        probe, swallowing = sender._takes_halves, _Swallowing()
        monkeypatch.setattr(sender, "_takes_halves", lambda: answers.is_set() and probe())
        sender._producer = swallowing  # type: ignore[assignment]  # no broker is silent on demand
        with monkeypatch.context() as patch:
            patch.setattr(sender, "budget", lambda waiting: Budget(waiting, 0.1))
            with pytest.raises(PublishFailed, match="did not acknowledge"):
                _sell(site, outbox)
        assert circuits.opened.is_set()
        engine = site.engine()
        for _ in range(100):
            with Session(engine) as session:
                with pytest.raises(PublishFailed, match="circuit is open"):
                    outbox.publish(session, Message(site.topic("orders"), "x"))
                assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # of the default pool
        assert swallowing.halves == 1
        sender._producer = None  # the next publication connects
        answers.set()
        assert circuits.closed.wait(60)
        _sell(site, outbox)


def test_circuit_that_opens_before_commit_fails_it_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.create("orders")
    with site.half_outbox() as outbox, Session(site.engine()) as session:
        monkeypatch.setattr(outbox._sender, "_takes_halves", lambda: False)
        outbox.publish(session, Message(site.topic("orders"), "x"))
        outbox._sender.unanswered(float("inf"), "no ack")
        with pytest.raises(PublishFailed, match="circuit is open"):
            session.commit()
    assert site.rows() == {}


_WRITES, _READS = 8, 8
"""Requests a second."""

_TIMEOUT = 1.0
_OUTAGE_SECONDS = 40.0
"""Longer than the library relies on a description of a topic (30 s)."""


@dataclass
class Answers:
    """What came of the requests of one kind.

    Args:
        kept: For each, when it was sent (s, monotonic), how long it took (s), and its status.
    """

    kept: list[tuple[float, float, int]] = field(default_factory=list)

    def between(self, start: float, end: float) -> list[tuple[float, int]]:
        """Return times and statuses of those that were sent between two moments."""
        return [(seconds, status) for at, seconds, status in self.kept if start <= at < end]

    def percentile(self, share: float, start: float, end: float) -> float:
        """Return the time (s) that this share of those took at most."""
        times = sorted(seconds for seconds, _ in self.between(start, end))
        return times[min(len(times) - 1, int(len(times) * share))]

    def waited(self, start: float, end: float, seconds: float) -> list[float]:
        """Return the times (s) of those that took at least so long."""
        return [took for took, _ in self.between(start, end) if took >= seconds]

    def figures(self, start: float, end: float) -> str:
        """Return the number, the percentiles of the times and the statuses of those."""
        found = self.between(start, end)
        statuses = sorted({status for _, status in found})
        p50, p99, longest = (self.percentile(share, start, end) * 1_000 for share in (0.5, 0.99, 1.0))
        return f"{len(found)} requests, p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {longest:.0f} ms, statuses {statuses}"


@contextmanager
def _service(site: Site, folder: str) -> Iterator[str]:
    """The example for FastAPI under uvicorn; the path of its socket."""
    path = str(Path(folder) / "web")
    url = site.postgres_url.replace("postgresql://", "postgresql+psycopg_async://", 1)
    variables = {"DATABASE_URL": url, "TOPIC": site.topic("orders"), "OUTBOX_PUBLISH_TIMEOUT_SECONDS": str(_TIMEOUT)}
    command = [sys.executable, "-m", "uvicorn", "examples.fastapi_app:app", "--uds", path, "--log-level", "warning"]
    with subprocess.Popen(command, cwd=ROOT, env={**site.environment(), **variables}) as process:
        try:
            wait_until(Path(path).exists)
            yield path
        finally:
            process.terminate()


@asynccontextmanager
async def _load(path: str, reads: Answers, writes: Answers) -> AsyncIterator[None]:
    """Send reads and writes at a constant rate, whatever becomes of those before."""
    limits = httpx.Limits(max_connections=1_000)
    transport = httpx.AsyncHTTPTransport(uds=path, limits=limits)
    async with httpx.AsyncClient(transport=transport, base_url="http://web", timeout=60) as client:
        under_way: set[asyncio.Task[None]] = set()

        async def one(answers: Answers, method: str, url: str, body: object) -> None:
            at = time.monotonic()
            answer = await client.request(method, url, json=body)
            answers.kept.append((at, time.monotonic() - at, answer.status_code))

        async def send(answers: Answers, rate: int, number: int = 0) -> None:
            while True:
                number += 1
                request = (
                    ("GET", "/readyz", None) if answers is reads else ("POST", "/orders", {"id": number, "what": "x"})
                )
                task = asyncio.create_task(one(answers, *request))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                await asyncio.sleep(1 / rate)

        senders = [asyncio.create_task(send(reads, _READS)), asyncio.create_task(send(writes, _WRITES))]
        try:
            yield
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*under_way)


async def _until_written(writes: Answers, since: float) -> float:
    """Wait until a write that was sent later succeeds; return when it was sent."""
    async with asyncio.timeout(60):
        while True:
            found = [at for at, _, status in writes.kept if at >= since and status == 201]
            if found:
                return min(found)
            await asyncio.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_outage_of_kafka_fails_writes_fast_and_leaves_reads_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """No read waits for Kafka, and after the first time-out no write does; the times are printed."""
    reads, writes = Answers(), Answers()

    async def scenario(stack: Stack, path: str) -> tuple[float, float, float, float]:
        async with _load(path, reads, writes):
            begun = await _until_written(writes, 0.0)
            await asyncio.sleep(5)
            stack.kafka.pause()
            paused = time.monotonic()
            await asyncio.sleep(_OUTAGE_SECONDS)
            stack.kafka.resume()
            resumed = time.monotonic()
            recovered = await _until_written(writes, resumed)
            await asyncio.sleep(3)
        return begun, paused, resumed, recovered

    with (
        Stack() as stack,
        Site(stack.bootstrap_servers, stack.postgres_url) as site,
        tempfile.TemporaryDirectory() as at,
    ):
        site.create("orders")
        with site.connect() as connection:
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY, what text)")
        with _service(site, at) as path:
            begun, paused, resumed, recovered = asyncio.run(scenario(stack, path))
    failed = min(when + seconds for when, seconds, status in writes.kept if status == 503)
    with capsys.disabled():
        print(  # noqa: T201 - the figures are a result
            f"\nbefore the outage: reads {reads.figures(begun, paused)}; writes {writes.figures(begun, paused)}",
            f"outage: reads {reads.figures(paused, resumed)}",
            f"outage, before the first time-out: writes {writes.figures(paused, failed)}",
            f"outage, after the first time-out: writes {writes.figures(failed, resumed)}",
            f"written again {(recovered - resumed) * 1_000:.0f} ms after Kafka went on",
            sep="\n",
        )
    assert {status for _, status in reads.between(0.0, float("inf"))} == {200}
    assert {status for _, status in writes.between(failed, resumed)} == {503}
    assert {status for _, status in writes.between(0.0, float("inf"))} <= {201, 503}
    assert not reads.waited(paused, resumed, _TIMEOUT), "reads go on"
    assert not writes.waited(failed, resumed, _TIMEOUT), "writes are refused, they do not wait"


_THREADS, _KEYS = 8, 200

_WAIT_SECONDS = 0.25
"""What takes longer has waited for something."""

_STEADY_SECONDS, _STOPPED_SECONDS = 4.0, 10.0


class _Orders:
    """Threads that publish the next number of a key in each transaction, after its row is locked."""

    def __init__(self, site: Site, outbox: Outbox) -> None:
        self.kept = Answers()
        self.errors: list[Exception] = []
        self._site, self._outbox, self._engine = site, outbox, site.engine(pool_size=_THREADS)
        self._stop = threading.Event()
        self._next = text(
            f"INSERT INTO {site.name}_key VALUES (:key, 1) ON CONFLICT (key) DO UPDATE SET number ="
            f" {site.name}_key.number + 1 RETURNING number"
        )

    def _run(self, chance: random.Random) -> None:
        while not self._stop.wait(0.01):
            at, key = time.monotonic(), f"key{chance.randrange(_KEYS)}"
            try:
                with Session(self._engine) as session, session.begin():
                    number = session.execute(self._next, {"key": key}).scalar_one()
                    self._outbox.publish(session, Message(self._site.topic("orders"), str(number), key))
            except Exception as error:  # noqa: BLE001 - none may fail
                self.errors.append(error)
            self.kept.kept.append((at, time.monotonic() - at, 201))

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(random.Random(seed),)) for seed in range(_THREADS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_outage_of_kafka_is_invisible_in_table_mode(capsys: pytest.CaptureFixture[str]) -> None:
    """No transaction fails, few wait, and each key has all its messages once and in order."""
    with Stack() as stack, Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create("orders")
        create(site)
        site.relay(extra=relay_settings(site))
        site.checker()
        orders = _Orders(site, Outbox("orders", tables=site.tables))
        with orders.running():
            time.sleep(_STEADY_SECONDS)  # the figures before it
            stack.kafka.pause()
            paused = time.monotonic()
            time.sleep(_STOPPED_SECONDS)
            resumed = time.monotonic()
            stack.kafka.resume()
            wait_until(lambda: waiting(site) < 100, explain=site.logs)
        wait_empty(site)
        with capsys.disabled():
            print(  # noqa: T201 - the figures are a result
                f"\nbefore the outage: {orders.kept.figures(paused - 3, paused)}",
                f"outage: {orders.kept.figures(paused, resumed)}",
                sep="\n",
            )
        assert not orders.errors
        assert_exactly(site, "orders")
        waited = orders.kept.waited(paused, resumed, _WAIT_SECONDS)
        assert len(waited) <= len(orders.kept.between(paused, resumed)) / 50, f"few wait: {waited}"
