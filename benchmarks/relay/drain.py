"""How fast committed halves that wait are delivered, beside the bare copy loop, and with many that pend before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.draining import PARTITIONS, Drain, copy_loop, drain, relay
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from outbox import Message
from stack import Stack
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import Site

BODY = b"x" * 256
PARTITIONS_WITH_PENDING = 8
"""So that 100,000 pending halves lie within the windows of their partitions."""


def measure_drain(stack: Stack, rounds: int, messages: int) -> list[Figure]:
    """Measure the relay beside the bare copy loop: both take the same halves, in a process of their own.

    Args:
        messages: How many committed halves wait.
    """
    relayed: list[Drain] = []
    copied: list[Drain] = []
    for _ in range(rounds):
        with _site(stack, PARTITIONS) as site:
            _fill(site, messages)
            copied.append(drain(site, "copied", messages, copy_loop(site, "copied")))
            relayed.append(drain(site, "real", messages, relay(site)))
    return [
        Figure(
            "relay_drain_vs_copy_loop",
            f"drain of {messages:,} committed halves, 256 B, {PARTITIONS} partitions, order per key",
            "messages/s",
            "bare transactional copy loop",
            [run.per_second for run in relayed],
            [run.per_second for run in copied],
            Target("ratio", "at least", 0.5),
        ),
        Figure(
            "relay_start_to_first_vs_copy_loop",
            "start of the process until the first message is visible",
            "s",
            "bare transactional copy loop",
            [run.to_first for run in relayed],
            [run.to_first for run in copied],
        ),
    ]


def measure_pending(stack: Stack, rounds: int, messages: int, pending: int) -> list[Figure]:
    """Measure the relay with many halves that nobody decides, beside itself without.

    Args:
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
        send_halves(site, site.half_outbox(), undecided)
        _fill(site, messages)
        return drain(site, "real", messages, relay(site))


@contextmanager
def _site(stack: Stack, partitions: int) -> Iterator[Site]:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create(partitions=partitions)
        site.create_topics("real", "copied", partitions=PARTITIONS)
        yield site


def _fill(site: Site, messages: int) -> None:
    publish_bulk(site, site.half_outbox(), (_message(site, f"key{number}") for number in range(messages)))


def _message(site: Site, key: str) -> Message:
    return Message(site.topic("real"), BODY, key, {"type": b"changed"})
