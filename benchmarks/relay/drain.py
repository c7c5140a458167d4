"""How fast committed halves that wait are delivered, beside the bare copy loop, and with many that pend before them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # public, but not in its __all__

from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from benchmarks.place import AS_DELIVERED
from outbox import Message
from stack import Stack
from tests.harness import Site
from tests.integration.bulk import publish_bulk, send_halves

BODY = b"x" * 256
PARTITIONS = 4
PARTITIONS_WITH_PENDING = 8
"""So that 100,000 pending halves lie within the windows of their partitions."""

_LOOK_SECONDS = 0.02
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


def measure_drain(stack: Stack, rounds: int, messages: int) -> list[Figure]:
    """Measure the relay beside the bare copy loop: both take the same halves, in a process of their own.

    Args:
        stack: Servers.
        rounds: How often both run, in turn.
        messages: How many committed halves wait.
    """
    relay: list[Drain] = []
    copy: list[Drain] = []
    for _ in range(rounds):
        with _site(stack, PARTITIONS) as site:
            _fill(site, messages)
            copy.append(_drain(site, "copied", messages, _copy_loop(site)))
            relay.append(_drain(site, "real", messages, _relay(site)))
    return [
        Figure(
            "relay_drain_vs_copy_loop",
            f"drain of {messages:,} committed halves, 256 B, {PARTITIONS} partitions, order per key",
            "messages/s",
            "bare transactional copy loop",
            [run.per_second for run in relay],
            [run.per_second for run in copy],
            Target("ratio", "at least", 0.7),
        ),
        Figure(
            "relay_start_to_first_vs_copy_loop",
            "start of the process until the first message is visible",
            "s",
            "bare transactional copy loop",
            [run.to_first for run in relay],
            [run.to_first for run in copy],
        ),
    ]


def measure_pending(stack: Stack, rounds: int, messages: int, pending: int) -> list[Figure]:
    """Measure the relay with many halves that nobody decides, beside itself without.

    Args:
        stack: Servers.
        rounds: How often both run, in turn.
        messages: How many committed halves wait.
        pending: How many undecided ones lie before them.
    """
    found = interleave(
        {"none": partial(_drain_with, stack, messages, 0), "pending": partial(_drain_with, stack, messages, pending)},
        rounds,
    )
    return [
        Figure(
            "relay_drain_with_pending_vs_none",
            f"drain of {messages:,} committed halves, {PARTITIONS_WITH_PENDING} partitions, {pending:,} pending",
            "messages/s",
            "none pending",
            [run.per_second for run in found["pending"]],
            [run.per_second for run in found["none"]],
            Target("ratio", "at least", 0.8),
        )
    ]


def _drain_with(stack: Stack, messages: int, pending: int) -> Drain:
    with _site(stack, PARTITIONS_WITH_PENDING) as site:
        undecided = (_message(site, f"pending{number}") for number in range(pending))
        send_halves(site, site.outbox(), undecided)
        _fill(site, messages)
        return _drain(site, "real", messages, _relay(site))


@contextmanager
def _site(stack: Stack, partitions: int) -> Iterator[Site]:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create(partitions=partitions)
        site.create_topics("real", "copied", partitions=PARTITIONS)
        yield site


def _fill(site: Site, messages: int) -> None:
    publish_bulk(site, site.outbox(), (_message(site, f"key{number}") for number in range(messages)))


def _message(site: Site, key: str) -> Message:
    return Message(site.topic("real"), BODY, key, {"type": b"changed"})


def _drain(site: Site, topic: str, messages: int, running: AbstractContextManager[None]) -> Drain:
    """Run a process until all messages are visible on a topic.

    Raises:
        TimeoutError: They did not become visible.
    """
    began = time.monotonic()
    first: tuple[float, int] | None = None
    with running:
        while time.monotonic() < began + _LONGEST_SECONDS:
            now, seen = time.monotonic(), _visible(site, topic)
            if first is None and seen:
                first = now, seen
            if first is not None and seen >= messages and now > first[0]:
                return Drain((messages - first[1]) / (now - first[0]), first[0] - began)
            time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"{messages} messages were not visible within {_LONGEST_SECONDS} s\n{site.logs()}")


def _visible(site: Site, topic: str) -> int:
    """How far a read_committed reader could read, control records of transactions included."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka does not type it
    places = {TopicPartition(site.topic(topic), number): latest for number in range(PARTITIONS)}
    answers = site.admin.list_offsets(places, isolation_level=IsolationLevel.READ_COMMITTED)
    return sum(int(future.result().offset) for future in answers.values())


@contextmanager
def _relay(site: Site) -> Iterator[None]:
    service = site.relay(extra=AS_DELIVERED)
    try:
        yield
    finally:
        service.terminate()


@contextmanager
def _copy_loop(site: Site) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.relay.copy_loop", site.name, site.topic("copied")]
    with subprocess.Popen(command, env=site.environment()) as process:
        try:
            yield
        finally:
            process.kill()
