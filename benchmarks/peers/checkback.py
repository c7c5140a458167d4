"""Check-back: halves that nobody decided, from due to decided and visible, beside RocketMQ that looks every second."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from benchmarks.application import SMALL
from benchmarks.draining import PARTITIONS, visible
from benchmarks.figures import Figure, Target
from benchmarks.peers.contest import Peers, compete
from benchmarks.peers.rocketmq import start_rocketmq, warm_up
from benchmarks.place import AS_DELIVERED
from outbox import HalfOutbox, Message
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, wait_until

WARM_UP = 1_000
"""Halves that are left undecided before, so that both paths are warm."""
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
        per_second: Messages per second, from when the first half was due until all were visible. To count from the last
            one that was due would give the faster side a shorter time than it worked: it decides while others fall due.
        seconds_after_due: From when the last half was due until all were visible.
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
        halves: Of one transaction each, all of which were committed.
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
    title = f"check-back of {halves:,} halves left undecided: the first one due → all visible"
    last = f"check-back of {halves:,} halves left undecided: the last one due → all visible"
    doubled = f"check-back of {halves:,} halves left undecided: delivered more than once"
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
            last,
            "s",
            beside,
            lambda run: run.seconds_after_due,
        ),
        found.figure(
            f"checkback_doubled{suffix}",
            doubled,
            "messages",
            beside,
            lambda run: run.doubled,
            Target("ours", "at most", 0),
        ),
    ]


def _checked(stack: Stack, halves: int, timeout_ms: int) -> CheckBack:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create(partitions=PARTITIONS)
        site.create_topics("real", "warm", partitions=PARTITIONS)
        relay = site.relay(extra={**AS_DELIVERED, "OUTBOX_TRANSACTION_TIMEOUT_MS": str(timeout_ms)})
        site.checker()
        wait_until(lambda: relay.output().count("Partition restored") == PARTITIONS, 120, site.logs)
        outbox = site.half_outbox()
        _leave_undecided(site, outbox, "warm", WARM_UP)
        _look(site, "warm", WARM_UP)
        _leave_undecided(site, outbox, "real", halves)
        done, _ = _look(site, "real", halves)[-1]
        first_due, last_due = _due(site, timeout_ms)
        counts = Counter(record.key for record in site.read("real"))
    if len(counts) != halves:
        raise AssertionError(f"{len(counts):,} of {halves:,} halves were decided and delivered")
    return CheckBack(halves / (done - first_due), max(0.0, done - last_due), counts.total() - halves)


def _leave_undecided(site: Site, outbox: HalfOutbox, topic: str, halves: int) -> None:
    name = site.topic(topic)
    messages = (Message(name, b"x" * SMALL, f"{topic}{number}") for number in range(halves))
    publish_bulk(site, outbox, messages, ops=False)


def _due(site: Site, timeout_ms: int) -> tuple[float, float]:
    """When the first and the last of the halves were due, in seconds since 1970: the broker noted their times."""
    times = [half.timestamp for half in site.halves() if (half.key or b"").startswith(b"real")]
    return (min(times) + timeout_ms) / 1_000, (max(times) + timeout_ms) / 1_000


def _look(site: Site, topic: str, halves: int) -> list[tuple[float, int]]:
    """Return times in seconds since 1970, and visible offsets at them, until nothing more comes."""
    looks: list[tuple[float, int]] = []
    end = time.time() + _LONGEST_SECONDS
    while (now := time.time()) < end:
        seen = visible(site, topic)
        if seen and (not looks or seen > looks[-1][1]):
            looks.append((now, seen))
        if looks and looks[-1][1] >= halves and now > looks[-1][0] + _QUIET_SECONDS:
            return looks
        time.sleep(_LOOK_SECONDS)
    raise TimeoutError(f"{halves} halves were not decided within {_LONGEST_SECONDS} s\n{site.logs()}")


def _rocketmq(site: Site, halves: int, timeout_ms: int) -> CheckBack:
    with start_rocketmq(site.postgres_url, timeout_ms, _CHECK_INTERVAL_MS) as (_, client):
        warm_up(client)
        client.ask_all(WARM_UP, "undecided", WARM_UP, SMALL, _THREADS)
        said = client.ask_all(halves, "undecided", halves, SMALL, _THREADS)
    first_due, last_due = (said[name] / _NS + timeout_ms / 1_000 for name in ("began", "sent"))
    done = said["last"] / _NS
    return CheckBack(halves / (done - first_due), max(0.0, done - last_due), said["arrivals"] - said["distinct"])
