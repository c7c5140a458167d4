"""Memory of a relay with very many pending halves, and the time of its restore with few among very many settled ones.

The halves are real, made by the library's own formats; what is settled among them is said by a checkpoint that is
committed as a relay does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.figures import Figure, Target
from benchmarks.interleaved import interleave
from benchmarks.place import AS_DELIVERED
from benchmarks.reading import start_reader
from outbox import HalfOutbox, Message
from outbox._kafka.channel import ChannelDescription
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.half import HalfControl, HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from stack import Stack
from tests.support.bulk import publish_bulk
from tests.support.harness import Service, Site, wait_until
from tests.support.probes import free_port, metric

PARTITIONS = 4
BODY = 256
SERVICES = 10
SETTLED = 1_000_000
FEW = 1_000
"""Halves that pend at the restore,"""
MANY = 100_000
"""and where very many do."""
RUNS = 250
"""That they lie in, in each partition."""
PENDING = 500_000
SIZES = (1, 5)
"""Messages in a transaction."""
SETTLE_SECONDS = 5.0
"""What was read last grows old meanwhile, and its bodies are let go."""
MEGABYTE = 1_000_000
NANOSECONDS = 1e9

RESTORED = Target("ours", "at most", 3)
SMALL = Target("ours", "at most", 512)


class Memory(NamedTuple):
    """Resident memory of a process.

    Args:
        settled_mb: Once it has come to rest, megabytes.
        peak_mb: The most that it ever was.
    """

    settled_mb: float
    peak_mb: float


class Restart(NamedTuple):
    """How long a relay took from the start of its process.

    Args:
        restored: Until its partitions are restored, seconds.
        first: Until a message was visible that had been committed while no relay ran, seconds.
    """

    restored: float
    first: float


def measure_restore(stack: Stack, rounds: int, pending: int = FEW) -> list[Figure]:
    """Measure how long a relay takes to go on after its start, beside a channel in which nothing pends or is settled.

    Args:
        pending: How many of a million halves pend.
    """
    with _site(stack) as (full, channel), _site(stack) as (empty, _):
        produce_undecided(full, "orders", SETTLED, 1)
        _commit_checkpoints(full, channel, SETTLED // PARTITIONS, pending // PARTITIONS)
        runs = {
            "full": partial(_restart, full, full.half_outbox(), pending),
            "empty": partial(_restart, empty, empty.half_outbox(), 0),
        }
        found = interleave(runs, rounds)
    title, words = "start of the process until", f"{pending:,} pending among {SETTLED:,} settled halves"
    return [
        Figure(
            f"restart_{pending}_of_1m_seconds",
            f"{title} all is restored: {words}",
            "s",
            "empty channel",
            [run.restored for run in found["full"]],
            [run.restored for run in found["empty"]],
            RESTORED if pending == FEW else None,
        ),
        Figure(
            f"restart_{pending}_of_1m_first_seconds",
            f"{title} the first message is visible: {words}",
            "s",
            "empty channel",
            [run.first for run in found["full"]],
            [run.first for run in found["empty"]],
        ),
    ]


def measure_memory(stack: Stack) -> list[Figure]:
    """Measure the memory of a relay that has read very many pending halves, beside one that has read none."""
    none = _resident(stack, 0, 1)
    return [figure for size in SIZES for figure in _memory(_resident(stack, PENDING, size), none, size)]


def _memory(with_: Memory, without: Memory, size: int) -> list[Figure]:
    suffix, place = f"{PENDING}_pending_{size}_each", f"in {PARTITIONS} partitions, transactions of {size}"
    words = f"with {PENDING:,} pending halves {place}"
    return [
        Figure(
            f"relay_memory_peak_mb_{suffix}",
            f"most resident memory until it has read all, {words}",
            "MB",
            "none pending",
            [with_.peak_mb],
            [without.peak_mb],
            SMALL,
        ),
        Figure(
            f"relay_memory_mb_{suffix}",
            f"resident memory {SETTLE_SECONDS:g} s later, {words}",
            "MB",
            "none pending",
            [with_.settled_mb],
            [without.settled_mb],
        ),
    ]


@contextmanager
def _site(stack: Stack) -> Iterator[tuple[Site, ChannelDescription]]:
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        yield site, site.create("orders", partitions=PARTITIONS)


def _restart(site: Site, outbox: HalfOutbox, pending: int) -> Restart:
    """Commit a message, and start a relay that knows of all that pend."""
    publish_bulk(site, outbox, [Message(site.topic("orders"), os.urandom(BODY), "new")])
    port = free_port()
    with start_reader(site, site.topic("orders")) as reading:
        began = time.monotonic_ns()
        relay = site.relay(extra={**AS_DELIVERED, "OUTBOX_HTTP_PORT": str(port)})
        wait_until(lambda: relay.output().count("Partition restored") == PARTITIONS, 120, site.logs)
        restored = time.monotonic_ns()
        wait_until(lambda: bool(reading.arrivals()), 120, site.logs)
        first = reading.arrivals()[0].at_ns
    # Not in the times: the gauges are set a moment later.
    wait_until(lambda: _pending(port) == pending, 30, lambda: f"{_pending(port)} pend, not {pending}\n{site.logs()}")
    relay.terminate()
    return Restart((restored - began) / NANOSECONDS, (first - began) / NANOSECONDS)


def _resident(stack: Stack, halves: int, transaction_size: int) -> Memory:
    """Return the memory of a relay that has read so many pending halves."""
    with _site(stack) as (site, _):
        produce_undecided(site, "orders", halves, transaction_size)
        port = free_port()
        relay = site.relay(extra={**AS_DELIVERED, "OUTBOX_HTTP_PORT": str(port)})
        wait_until(lambda: relay.output().count("Partition restored") == PARTITIONS, 120, site.logs)
        wait_until(lambda: _pending(port) >= halves // transaction_size, 300, site.logs)
        time.sleep(SETTLE_SECONDS)
        return Memory(_megabytes(relay, "VmRSS"), _megabytes(relay, "VmHWM"))


def _pending(port: int) -> float:
    """Transactions that pend in a relay, or lie in the discard topic."""
    return metric(port, "outbox_relay_pending") + metric(port, "outbox_relay_discarded")


def _megabytes(service: Service, field: str) -> float:
    """Resident memory of a process, now (VmRSS) or at most (VmHWM)."""
    status = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(field)).split()[1]) * 1024 / MEGABYTE


def produce_undecided(site: Site, topic: str, count: int, transaction_size: int, partitions: int = PARTITIONS) -> None:
    """Halves of undecided transactions, spread over the partitions, each transaction with a key of its own.

    Args:
        topic: The site's name of their real topic.
        transaction_size: Messages in a transaction.
        partitions: Of the half topic.
    """
    producer = Producer({**site.kafka(), "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for number in range(0, count, transaction_size):
        id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        options = HalfOptions(incarnation="018f0000-0000-7000-8000-000000000000")
        service = f"g{number // transaction_size % SERVICES}"
        for position in range(transaction_size):
            control = HalfControl(site.topic(topic), -1, id_, position, service, Truth.ROW, options)
            producer.produce(
                site.channel.half_topic,
                os.urandom(BODY),
                str(number).encode(),
                number // transaction_size % partitions,
                headers=list(control.encode()),
            )
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not all halves were acknowledged")


def _commit_checkpoints(site: Site, channel: ChannelDescription, per_partition: int, pending: int) -> None:
    """Say that so many halves of each partition pend, in runs at equal distances, and all others are settled."""
    runs = _runs(per_partition, pending)
    checkpoint = HalfCheckpoint(runs[0].start if runs else per_partition, per_partition, runs)
    half = channel.half
    places = [
        TopicPartition(half.name, number, checkpoint.offset, checkpoint.encode(half.id, number))
        for number in range(PARTITIONS)
    ]
    service = {"group.id": site.channel.relay_group, "enable.auto.commit": False}
    with closing(Consumer({**site.kafka(), **service})) as consumer:
        consumer.commit(offsets=places, asynchronous=False)


def _runs(per_partition: int, pending: int) -> tuple[range, ...]:
    """Where so many halves pend: a checkpoint can name so few runs that many of them cannot lie apart (R20)."""
    if not pending:
        return ()
    each = -(-pending // RUNS)
    return tuple(range(start, start + each) for start in range(0, per_partition, per_partition * each // pending))
