"""Check-back: halves that nobody decided, from due to decided and visible, beside RocketMQ that looks every second."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from benchmarks.application import SMALL
from benchmarks.draining import PARTITIONS, drain_of, visible
from benchmarks.figures import Figure, Target
from benchmarks.peers.contest import Peers, compete
from benchmarks.peers.rocketmq import start_rocketmq, warm_up
from benchmarks.place import AS_DELIVERED
from outbox import Message
from stack import Stack
from tests.harness import Site, doubled, wait_until
from tests.integration.bulk import publish_bulk

_THREADS = 32
_CHECK_INTERVAL_MS = 1_000
"""RocketMQ looks every 30 s by itself."""
_LONGEST_SECONDS = 240.0
_LOOK_SECONDS = 0.02
_QUIET_SECONDS = 3.0
"""Doubles would come by then."""
_NS = 1e9
_MOST_HALVES_AT_6_S = 20_000


class CheckBack(NamedTuple):
    """What came of one run.

    Args:
        per_second: Messages per second, from the first that was visible to the last.
        seconds_after_due: From when the last half was due until all were visible.
        doubled: Messages that were delivered more than once.
    """

    per_second: float
    seconds_after_due: float
    doubled: int


def measure_checkback(
    stack: Stack, site: Site, rounds: int, halves: int, without: Collection[str] = ()
) -> list[Figure]:
    """Measure relay and checker beside RocketMQ; both ask for what is 6 s old, or 20 s if sending takes longer.

    RocketMQ's application answers from its memory, the checker from the callback table.

    Args:
        stack: Servers.
        site: Where the business table is.
        rounds: How often both run, in turn.
        halves: Of one transaction each, all of which were committed.
        without: Peers that are left out.
    """
    timeout_ms = 6_000 if halves <= _MOST_HALVES_AT_6_S else 20_000
    with ExitStack() as running:
        found = compete(
            {"relay and checker": partial(_checked, stack, halves, timeout_ms)},
            {"rocketmq": partial(_rocketmq, site, halves, timeout_ms)},
            Peers(running, without),
            rounds,
        )
    suffix = "" if halves <= _MOST_HALVES_AT_6_S else f"_{halves}"
    title = f"check-back of {halves:,} halves left undecided"
    beside = ("relay and checker", "rocketmq")
    return [
        found.figure(
            f"checkback_per_second{suffix}",
            title,
            "messages/s",
            beside,
            lambda run: run.per_second,
            Target("ratio", "at least", 3),
        ),
        found.figure(
            f"checkback_seconds_after_due{suffix}",
            f"{title}: the last one due → all visible",
            "s",
            beside,
            lambda run: run.seconds_after_due,
        ),
        found.figure(
            f"checkback_doubled{suffix}",
            f"{title}: delivered more than once",
            "messages",
            beside,
            lambda run: run.doubled,
            Target("ours", "at most", 0),
        ),
    ]


def _checked(stack: Stack, halves: int, timeout_ms: int) -> CheckBack:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create(partitions=PARTITIONS)
        site.create_topics("real", partitions=PARTITIONS)
        relay = site.relay(extra={**AS_DELIVERED, "OUTBOX_TRANSACTION_TIMEOUT": str(timeout_ms)})
        site.checker()
        wait_until(lambda: relay.output().count("a partition is restored") == PARTITIONS, 120, site.logs)
        topic, began = site.topic("real"), time.monotonic()
        messages = (Message(topic, b"x" * SMALL, f"key{number}") for number in range(halves))
        publish_bulk(site, site.outbox(), messages, ops=False)
        due = time.monotonic() + timeout_ms / 1_000
        looks = _look(site, halves)
        seconds = max(0.0, looks[-1][0] - due)
        per_second = drain_of(looks, halves, began).per_second
        return CheckBack(per_second, seconds, len(doubled(site.read("real"))))


def _look(site: Site, halves: int) -> list[tuple[float, int]]:
    """Times, and offsets that were visible, until nothing more comes."""
    looks: list[tuple[float, int]] = []
    end = time.monotonic() + _LONGEST_SECONDS
    while (now := time.monotonic()) < end:
        seen = visible(site, "real")
        if seen and (not looks or seen > looks[-1][1]):
            looks.append((now, seen))
        if looks and looks[-1][1] >= halves and now > looks[-1][0] + _QUIET_SECONDS:
            return looks
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"{halves} halves were not decided within {_LONGEST_SECONDS} s\n{site.logs()}")


def _rocketmq(site: Site, halves: int, timeout_ms: int) -> CheckBack:
    with start_rocketmq(site.postgres_url, timeout_ms, _CHECK_INTERVAL_MS) as (_, client):
        warm_up(client)
        said = client.ask("undecided", halves, SMALL, _THREADS)
    if said["distinct"] < halves:
        raise TimeoutError(f"RocketMQ decided {said['distinct']} of {halves} halves")
    return CheckBack(
        halves / ((said["last"] - said["first"]) / _NS),
        max(0.0, (said["last"] - said["sent"]) / _NS - timeout_ms / 1_000),
        said["arrivals"] - said["distinct"],
    )
