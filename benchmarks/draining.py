"""How fast a process makes visible what waits for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, but not in its __all__

from benchmarks.cpu import BROKER, POSTGRES, RELAY, cpu_us
from benchmarks.figures import Figure, Target
from benchmarks.place import AS_DELIVERED
from tests.support.harness import Site

KINDS = (RELAY, POSTGRES, BROKER)
"""Of processes that a row costs."""

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
        cpu: Microseconds of CPU for a message between these looks, by kind of process.
    """

    per_second: float
    to_first: float
    cpu: Mapping[str, float] = field(default_factory=dict)


def drain(site: Site, topic: str, messages: int, running: AbstractContextManager[object], relays: str = RELAY) -> Drain:
    """Run a process until all messages are visible on a topic, and look afterwards that each is there once.

    Args:
        topic: The site's name of a real topic with `PARTITIONS` partitions.
        messages: How many will come, each with a key of its own.
        running: Starts the process, and ends it.
        relays: What kind of process it is.
    """
    before, spent = ends(site, topic), [cpu_us()]
    with running:
        start = time.monotonic()
        looks = _look(site, topic, messages, sum(before.values()), start + _LONGEST_SECONDS, spent)
    check_each_once(keys_from(site, topic, before), messages)
    spent[-1].subtract(spent[1] if looks[0] != looks[-1] else spent[0])
    cpu = {kind: spent[-1][relays if kind == RELAY else kind] for kind in KINDS}
    return drain_of(looks, messages, start, cpu)


def _look(
    site: Site, topic: str, messages: int, before: int, end: float, spent: list[Counter[str]]
) -> list[tuple[float, int]]:
    """Return times, and end offsets at them, until `messages` are visible.

    Args:
        spent: Gets the CPU at the first look that saw something, and at those from the last message on.
    """
    looks: list[tuple[float, int]] = []
    while (now := time.monotonic()) < end:
        seen = visible(site, topic) - before
        if seen and (not looks or seen > looks[-1][1]):
            looks.append((now, seen))
            if len(looks) == 1 or seen >= messages:
                spent.append(cpu_us())
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


def drain_of(
    looks: list[tuple[float, int]], messages: int, start: float, cpu: Mapping[str, float] | None = None
) -> Drain:
    """Return what a drain's looks say.

    Args:
        looks: Times, and offsets seen by then; the last look saw everything, control records included.
        messages: How many of the offsets are messages.
        cpu: Microseconds that were used between the first look and the last, by kind of process.
    """
    (first, seen), (last, everything) = looks[0], looks[-1]
    if last == first:  # too few messages: all came between two looks
        first, seen = start, 0
    moved = (everything - seen) * messages / everything
    return Drain(moved / (last - first), first - start, {kind: us / moved for kind, us in (cpu or {}).items()})


def cpu_figures(
    end: str, words: str, baseline: str, ours: Sequence[Drain], beside: Sequence[Drain], target: float | None = None
) -> list[Figure]:
    """Return what a row costs, of all processes together and of each kind.

    Args:
        end: Of the figures' names.
        target: Of the ratio of all together.
    """

    def figure(name: str, kind: str, value: Callable[[Drain], float], target: Target | None = None) -> Figure:
        title = f"CPU of {kind} for a row that drains, {words}"
        return Figure(f"{name}_{end}", title, "µs", baseline, [*map(value, ours)], [*map(value, beside)], target)

    def spent(kind: str) -> Callable[[Drain], float]:
        return lambda run: run.cpu[kind]

    limit = None if target is None else Target("ratio", "at most", target)
    together = figure("table_drain_cpu", " + ".join(KINDS), lambda run: sum(run.cpu.values()), limit)
    each = [figure(f"table_drain_cpu_{kind.lower()}", kind, spent(kind)) for kind in KINDS]
    return [together, *each]


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
