"""What a message costs as things grow: half partitions, pending halves, relay processes; each beside the smallest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.draining import PARTITIONS, drain, relay
from benchmarks.figures import Figure
from benchmarks.interleaved import interleave
from benchmarks.relay.limits import produce_undecided
from outbox import Message
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.harness import Site

BODY = b"x" * 256
HALF_PARTITIONS = (1, 4, 16, 64)
PENDING = (0, 10_000, 500_000)
PROCESSES = (1, 2, 3, 4)
_MICROSECONDS = 1e6


def measure_growth(stack: Stack, rounds: int, messages: int) -> list[Figure]:
    """Measure drains of as many messages while one thing grows.

    Args:
        messages: How many committed halves wait.
    """
    run = partial(_microseconds, stack, messages)
    return [
        *_figures("partitions", "half partitions", {n: partial(run, partitions=n) for n in HALF_PARTITIONS}, rounds),
        *_figures("pending", "pending halves", {n: partial(run, pending=n) for n in PENDING}, rounds),
        *_figures("processes", "relay processes", {n: partial(run, processes=n) for n in PROCESSES}, rounds),
    ]


def _figures(name: str, words: str, sizes: Mapping[int, Callable[[], float]], rounds: int) -> list[Figure]:
    found = interleave({f"{size:,} {words}": run for size, run in sizes.items()}, rounds)
    (first, least), *others = found.items()
    return [
        Figure(f"growth_{name}_{size}", f"cost of a message with {label}", "µs", first, taken, least)
        for size, (label, taken) in zip(list(sizes)[1:], others, strict=True)
    ]


def _microseconds(
    stack: Stack, messages: int, *, partitions: int = PARTITIONS, pending: int = 0, processes: int = 1
) -> float:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create(partitions=partitions)
        site.create_topics("real", partitions=PARTITIONS)
        produce_undecided(site, "real", pending, 1, partitions)
        topic = site.topic("real")
        publish_bulk(site, site.half_outbox(), (Message(topic, BODY, f"key{number}") for number in range(messages)))
        return _MICROSECONDS / drain(site, "real", messages, relay(site, processes)).per_second
