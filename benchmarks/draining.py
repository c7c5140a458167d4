"""How fast a process makes visible what waits for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, but not in its __all__

from benchmarks.place import AS_DELIVERED
from tests.support.harness import Site

PARTITIONS = 4
"""Of every real topic that is drained to."""

_LOOK_SECONDS = 0.02
_QUIET_SECONDS = 1.0
"""Nothing more comes for so long: control records of transactions come last, and count as nothing."""
_LONGEST_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Drain:
    """One run of a drain.

    Args:
        per_second: Messages per second, from the first look that saw some to the last one.
        to_first: Seconds from the start of the process to that first look.
    """

    per_second: float
    to_first: float


def drain(site: Site, topic: str, messages: int, running: AbstractContextManager[object]) -> Drain:
    """Run a process until all messages are visible on a topic, and look afterwards that each is there once.

    Args:
        topic: The site's name of a real topic with `PARTITIONS` partitions.
        messages: How many will come, each with a key of its own.
        running: Starts the process, and ends it.
    """
    before = ends(site, topic)
    with running:
        start = time.monotonic()
        looks = _look(site, topic, messages, sum(before.values()), start + _LONGEST_SECONDS)
    check_each_once(keys_from(site, topic, before), messages)
    return drain_of(looks, messages, start)


def _look(site: Site, topic: str, messages: int, before: int, end: float) -> list[tuple[float, int]]:
    """Return times, and end offsets at them, until so many messages are visible."""
    looks: list[tuple[float, int]] = []
    while (now := time.monotonic()) < end:
        seen = visible(site, topic) - before
        if seen and (not looks or seen > looks[-1][1]):
            looks.append((now, seen))
        if looks and looks[-1][1] >= messages and now > looks[-1][0] + _QUIET_SECONDS:
            return looks
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"{messages} messages were not visible within {_LONGEST_SECONDS} s\n{site.logs()}")


def check_each_once(keys: Iterable[bytes | None], messages: int) -> None:
    """Look that so many messages came, each with a key of its own and each once."""
    counts = Counter(keys)
    missing, again = messages - len(counts), counts.total() - len(counts)
    if missing or again:
        raise AssertionError(f"of {messages:,} messages {missing:,} are missing, and {again:,} came again")


def drain_of(looks: list[tuple[float, int]], messages: int, start: float) -> Drain:
    """Return what a drain's looks say.

    Args:
        looks: Times, and offsets seen by then; the last look saw everything, control records included.
        messages: How many of the offsets are messages.
    """
    (first, seen), (last, everything) = looks[0], looks[-1]
    if last == first:  # too few messages: all came between two looks
        first, seen = start, 0
    share = messages / everything
    return Drain((everything - seen) * share / (last - first), first - start)


def visible(site: Site, topic: str) -> int:
    """How far a read_committed reader could read, control records of transactions included."""
    return sum(ends(site, topic).values())


def ends(site: Site, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[int, int]:
    """Return the end of each partition: how far readers of this kind could read.

    Args:
        topic: The site's name of a real topic with `PARTITIONS` partitions.
        isolation: Whether what a transaction has written counts before its end.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka does not type it
    places = {TopicPartition(site.topic(topic), number): latest for number in range(PARTITIONS)}
    answers = site.admin.list_offsets(places, isolation_level=isolation)
    return {place.partition: int(future.result().offset) for place, future in answers.items()}


def keys_from(site: Site, topic: str, before: Mapping[int, int]) -> Iterator[bytes | None]:
    """Return the keys of all that a read_committed reader sees now behind some offsets of the partitions."""
    return (record.key for record in site.read(topic) if record.offset >= before[record.partition])


@contextmanager
def relay(site: Site, processes: int = 1, *, tables: Iterable[str] = ()) -> Iterator[None]:
    """Run the project's relay during the block.

    Args:
        tables: Prefixes of the names of message tables that it delivers from too.
    """
    sources = {prefix: {"dsn": site.postgres_url, "table_prefix": prefix} for prefix in tables}
    settings = {**AS_DELIVERED, "OUTBOX_TABLES": json.dumps(sources)}
    services = [site.relay(extra=settings) for _ in range(processes)]
    try:
        yield
    finally:
        for service in services:
            service.terminate()


@contextmanager
def copy_loop(site: Site, topic: str, each: int = 1) -> Iterator[None]:
    """Run the bare copy loop during the block.

    Args:
        topic: The site's name of the topic that it copies to.
        each: Messages in every transaction.
    """
    command = [sys.executable, "-m", "benchmarks.relay.copy_loop", site.name, site.topic(topic), str(each)]
    with subprocess.Popen(command, env=site.environment()) as process:
        try:
            yield
        finally:
            process.kill()
