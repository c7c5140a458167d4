"""From COMMIT to a read_committed reader, at a steady rate, beside a polling relay of an ordinary outbox table."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.application import Application, Tell
from benchmarks.figures import Figure
from benchmarks.interleaved import interleave
from benchmarks.library.throughput import relays
from benchmarks.spread import percentile
from outbox import Message
from tests.harness import Site, wait_until
from tests.integration.bulk import send_halves

RATE = 200
THREADS = 4
_PERCENTILES = (50, 99)
_TICK_SECONDS = 0.1
_DEAD_AT_ONCE = 9
"""For each tick: 30 % of all traffic beside 200 transactions/s."""
_NS = 1e6  # in a millisecond


def measure_latency(site: Site, application: Application, rounds: int, seconds: float) -> list[Figure]:
    """Measure `publish()` with the relay beside an outbox-table insert with a polling relay.

    Args:
        site: Where; relay and polling relay are started here.
        application: Warm.
        rounds: How often both run, in turn.
        seconds: How long each run is.
    """
    with relays(site) as caught_up:
        variants = {"publish": application.publish, "insert": application.insert}
        runs = {name: partial(_milliseconds, site, application, tell, seconds) for name, tell in variants.items()}
        interleave(runs, 3, caught_up)  # both relays warm up
        found = interleave(runs, rounds, caught_up)
    return [
        Figure(
            f"commit_to_visible_p{percent}_ms_{RATE}",
            f"COMMIT returned → visible to a read_committed reader, {RATE} transactions/s, p{percent}",
            "ms",
            "outbox table and a polling relay that looks every 50 ms",
            [percentile(taken, percent) for taken in found["publish"]],
            [percentile(taken, percent) for taken in found["insert"]],
        )
        for percent in _PERCENTILES
    ]


def measure_dead_group(site: Site, application: Application, rounds: int, seconds: float) -> list[Figure]:
    """Measure `publish()` beside a producer group that nobody decides for, at 30 % of the traffic, and without it.

    Args:
        site: Where; a relay, and no checker, is started here.
        application: Warm.
        rounds: How often both run, in turn; what the dead group has left behind stays.
        seconds: How long each run is.
    """
    with relays(site) as caught_up:
        runs = {
            "alone": partial(_milliseconds, site, application, application.publish, seconds),
            "beside": partial(_beside_dead_group, site, application, seconds),
        }
        _milliseconds(site, application, application.publish, seconds)  # warms up
        caught_up()
        found = interleave(runs, rounds)  # the dead group never catches up
    return [
        Figure(
            f"commit_to_visible_p{percent}_ms_beside_dead_group",
            f"the same, {RATE} transactions/s, beside a dead group with 30 % of all traffic, p{percent}",
            "ms",
            "without it",
            [percentile(taken, percent) for taken in found["beside"]],
            [percentile(taken, percent) for taken in found["alone"]],
        )
        for percent in _PERCENTILES
    ]


def _beside_dead_group(site: Site, application: Application, seconds: float) -> list[float]:
    """The application's own milliseconds, while halves of another group come that nobody ever decides."""
    ended = threading.Event()

    def send() -> None:
        outbox = site.outbox("dead")
        for number in itertools.count():
            if ended.wait(_TICK_SECONDS):
                return
            at_once = range(number * _DEAD_AT_ONCE, (number + 1) * _DEAD_AT_ONCE)
            send_halves(site, outbox, [Message(application.topic, b"dead", f"dead{each}") for each in at_once])

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            return _milliseconds(site, application, application.publish, seconds)
        finally:
            ended.set()
            sending.result()


def _milliseconds(site: Site, application: Application, tell: Tell, seconds: float) -> list[float]:
    """Of each message: from the return of its COMMIT until it was read; less than nothing if it was there before."""
    with TemporaryDirectory() as folder, _reader(site, application.topic, Path(folder) / "seen") as seen:
        committed = _run(application, tell, seconds)
        wait_until(lambda: len(_read(seen)) >= len(committed), timeout=120)
        read = _read(seen)
    return [(read[key] - at) / _NS for key, at in committed.items()]


def _run(application: Application, tell: Tell, seconds: float) -> dict[str, int]:
    """Transactions at a steady rate, from several threads; when each COMMIT returned, ns, by the message's key."""
    committed: dict[str, int] = {}
    count = int(seconds * RATE)
    began = time.monotonic()

    def work(thread: int) -> None:
        for number in range(thread, count, THREADS):
            threading.Event().wait(max(0.0, began + number / RATE - time.monotonic()))
            application.transaction(tell, number)
            committed[str(number)] = time.monotonic_ns()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    return committed


@contextmanager
def _reader(site: Site, topic: str, path: Path) -> Iterator[Path]:
    command = [sys.executable, "-m", "benchmarks.relay.reader", topic, str(path)]
    with subprocess.Popen(command, env=site.environment()) as process:
        try:
            wait_until(lambda: path.exists() and path.read_text().startswith("\n"))
            yield path
        finally:
            process.kill()


def _read(path: Path) -> dict[str, int]:
    lines = path.read_text().rpartition("\n")[0].split("\n")
    return {key: int(at) for key, at in (line.split() for line in lines if line)}
