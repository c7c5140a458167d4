"""Transactions at a steady rate, and how long after each COMMIT its message was there for a read_committed reader."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.application import Application, Tell
from tests.harness import Site, wait_until

RATE = 200
_LEAST_THREADS = 4
_PER_THREAD = 50
"""Transactions a second that are asked of one thread at most."""

_NS = 1e6  # in a millisecond


class Steady(NamedTuple):
    """What came of a run at a steady rate.

    Args:
        milliseconds: Of each message: from the return of its COMMIT until it was read; less than nothing if it was
            there before.
        per_second: Transactions per second that the application reached.
    """

    milliseconds: list[float]
    per_second: float


def run_steadily(site: Site, application: Application, tell: Tell, seconds: float, rate: int = RATE) -> Steady:
    """Run transactions at a steady rate, with a reader in a process of its own.

    Args:
        site: Where.
        application: Whose transactions, and to whose topic.
        tell: How others are told.
        seconds: How long.
        rate: Transactions per second.

    Raises:
        AssertionError: A message did not become visible.
    """
    with TemporaryDirectory() as folder, _reader(site, application.topic, Path(folder) / "seen") as seen:
        committed, taken = _run(application, tell, int(seconds * rate), rate)
        wait_until(lambda: len(_read(seen)) >= len(committed), timeout=120)
        read = _read(seen)
    return Steady([(read[key] - at) / _NS for key, at in committed.items()], len(committed) / taken)


def threads_for(rate: int) -> int:
    """So many threads reach a rate, at ordinary speed of a transaction."""
    return max(_LEAST_THREADS, rate // _PER_THREAD)


def _run(application: Application, tell: Tell, count: int, rate: int) -> tuple[dict[str, int], float]:
    """When each COMMIT returned, ns, by the message's key; and the seconds that all took."""
    committed: dict[str, int] = {}
    threads = threads_for(rate)
    began = time.monotonic()

    def work(thread: int) -> None:
        for number in range(thread, count, threads):
            threading.Event().wait(max(0.0, began + number / rate - time.monotonic()))
            application.transaction(tell, number)
            committed[str(number)] = time.monotonic_ns()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return committed, time.monotonic() - began


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
