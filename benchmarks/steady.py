"""Transactions at a steady rate, and how long after each COMMIT its message was there for a read_committed reader."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from benchmarks.application import Application, Tell
from benchmarks.reading import first_times, start_reader
from tests.support.harness import Site, wait_until

RATE = 200
BUSY = 2_000
"""Messages a second, of transactions of ten: one in a transaction is more than two cores commit beside a relay."""

_LEAST_THREADS = 4
_PER_THREAD = 50
"""Transactions a second that are asked of one thread at most."""

_LONGEST_SECONDS = 120.0

_NS = 1e6  # in a millisecond
_firsts = itertools.count(0, 1_000_000)
"""The first number of each run: what comes again of an earlier run is not taken for one of this."""


class Steady(NamedTuple):
    """What came of a run at a steady rate.

    Args:
        milliseconds: Of each message: from the return of its COMMIT until it was first read; less than nothing if it
            was there before.
        per_second: Messages per second that the application reached.
        doubled: Messages that came again, each repetition counted.
    """

    milliseconds: list[float]
    per_second: float
    doubled: int = 0


def run_steadily(site: Site, application: Application, tell: Tell, seconds: float, rate: int = RATE) -> Steady:
    """Run transactions at a steady rate, with a reader in a process of its own; at least once may come twice.

    Args:
        application: Whose transactions, and to whose topic.
        rate: Messages per second.
    """
    with start_reader(site, application.topic) as reading:
        committed, taken = _run(application, tell, int(seconds * rate), rate)
        wait_until(
            lambda: first_times(reading.arrivals()).keys() >= committed.keys(),
            _LONGEST_SECONDS,
            lambda: f"of {len(committed):,} messages {len(first_times(reading.arrivals())):,} became visible",
        )
        arrivals = reading.arrivals()
    read = first_times(arrivals)
    milliseconds = [(read[key] - at) / _NS for key, at in committed.items()]
    own = sum(arrival.key in committed for arrival in arrivals)
    return Steady(milliseconds, len(committed) / taken, own - len(committed))


def in_transaction(rate: int) -> int:
    """Return how many messages a transaction has at a rate."""
    return 10 if rate >= BUSY else 1


def threads_for(rate: int) -> int:
    """So many threads reach a rate, at ordinary speed of a transaction."""
    return max(_LEAST_THREADS, rate // in_transaction(rate) // _PER_THREAD)


def _run(application: Application, tell: Tell, count: int, rate: int) -> tuple[dict[str, int], float]:
    """When each COMMIT returned, ns, by the message's key; and the seconds that all took."""
    committed: dict[str, int] = {}
    each, threads, first = in_transaction(rate), threads_for(rate), next(_firsts)
    began = time.monotonic()

    def work(thread: int) -> None:
        for number in range(thread * each, count, threads * each):
            threading.Event().wait(max(0.0, began + number / rate - time.monotonic()))
            keys = [str(first + number + one) for one in range(each)]
            application.transaction(tell, first + number, keys=keys)
            committed.update(dict.fromkeys(keys, time.monotonic_ns()))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    return committed, time.monotonic() - began
