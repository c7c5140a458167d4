"""How long a service waits for its messages while another one floods its half partition.

The flood is halves that nobody ever decides, written as fast as Kafka takes them. No checker runs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Producer

from benchmarks.figures import Figure, Target
from benchmarks.place import AS_DELIVERED
from benchmarks.reading import first_times, start_reader
from outbox import Message
from outbox.protocol.half import HalfControl, HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, wait_until

HALVES = 300_000
SECONDS = 15.0
"""How long the other service publishes, from the begin of the flood on."""
WAIT_SECONDS = 300
LITTLE = Target("ours", "at most", 2_000)

_PAUSE_SECONDS = 0.1
_BODY = 256
_NANOSECONDS_PER_MS = 1_000_000


class Waits(NamedTuple):
    """What the other service measured.

    Args:
        milliseconds: From the op marker until the message was visible, of each message.
        written_ms: How long the flood took to write.
    """

    milliseconds: list[float]
    written_ms: float


def measure_flood(stack: Stack, rounds: int) -> list[Figure]:
    """Measure the longest wait of a service beside the time that it takes to write another service's flood.

    Args:
        rounds: How often both are measured, each time in a channel of its own.
    """
    found = [_round(stack) for _ in range(rounds)]
    return [
        Figure(
            "flood_longest_wait_ms",
            f"longest wait of a service for a message, beside {HALVES:,} undecided halves of another service",
            "ms",
            "time to write the flood",
            [max(waits.milliseconds) for waits in found],
            [waits.written_ms for waits in found],
            LITTLE,
        )
    ]


def _round(stack: Stack) -> Waits:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create("orders", "flooded", partitions=1)
        site.relay(extra=AS_DELIVERED)
        return _waits_beside_a_flood(site)


def _waits_beside_a_flood(site: Site) -> Waits:
    """Publish a message every 100 ms during a flood, and until some time after it."""
    published: dict[str, int] = {}
    topic = site.topic("orders")
    with site.half_outbox(publish_timeout_seconds=30.0) as outbox, start_reader(site, topic) as reading:
        publish_bulk(site, outbox, [Message(topic, b"v", "first")])
        wait_until(lambda: "first" in first_times(reading.arrivals()), explain=site.logs)
        with _flood(site) as took:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                key = f"key{len(published)}"
                publish_bulk(site, outbox, [Message(topic, b"v", key)])
                published[key] = time.monotonic_ns()
                time.sleep(_PAUSE_SECONDS)
        wait_until(lambda: set(published) <= set(first_times(reading.arrivals())), WAIT_SECONDS, site.logs)
        seen = first_times(reading.arrivals())
    return Waits([(seen[key] - at) / _NANOSECONDS_PER_MS for key, at in published.items()], took[0] * 1_000)


@contextmanager
def _flood(site: Site) -> Iterator[list[float]]:
    """Write the flood in a thread; the block gets how long that took, in seconds, once it is over."""
    took: list[float] = []

    def write() -> None:
        began = time.monotonic()
        _produce(site)
        took.append(time.monotonic() - began)

    thread = threading.Thread(target=write, name="flood")
    thread.start()
    try:
        yield took
    finally:
        thread.join()


def _produce(site: Site) -> None:
    """Write undecided halves of one service, each of a transaction of its own."""
    producer = Producer({**site.kafka(), "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    body, options = os.urandom(_BODY), HalfOptions(incarnation="018f0000-0000-7000-8000-000000000000")
    for number in range(HALVES):
        id_ = make_transaction_id(time.time_ns() // _NANOSECONDS_PER_MS, os.urandom(10))
        control = HalfControl(site.topic("flooded"), -1, id_, 0, "flood", Truth.ROW, options)
        producer.produce(site.channel.half_topic, body, str(number).encode(), 0, headers=list(control.encode()))
        if not number % 1_000:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not all halves were acknowledged")
