"""From COMMIT to a read_committed reader, at a steady rate, beside a polling relay of an ordinary outbox table."""

from __future__ import annotations

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
from tests.harness import Site, wait_until

RATE = 200
THREADS = 4
_PERCENTILES = (50, 99)
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
