"""`python -m benchmarks.relay.limits`: memory of a relay with very many pending halves, and the time of its restore.

The halves are real, made by the library's own formats; what is settled among them is said by a checkpoint that is
committed as a relay does. The figures go to benchmarks/results/relay_limits.json.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import typer
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.environment import environment
from benchmarks.results_file import FOLDER
from outbox.channel import ChannelDescription
from outbox.protocol.checkpoint import HalfCheckpoint, runs_of
from outbox.protocol.half import HalfControl, HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from stack import Stack
from stack.ports import Ports
from tests.harness import Service, Site, wait_until

RESULTS = FOLDER / "relay_limits.json"
PARTITIONS = 4
BODY = 256
GROUPS = 10
MEGABYTE = 1_000_000


def _produce(site: Site, count: int, transaction_size: int) -> None:
    """Halves of undecided transactions, spread over the partitions, each transaction with a key of its own."""
    producer = Producer({**site.kafka(), "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for number in range(0, count, transaction_size):
        id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        options = HalfOptions(incarnation="018f0000-0000-7000-8000-000000000000")
        for position in range(transaction_size):
            control = HalfControl(site.topic("orders"), -1, id_, position, f"g{number % GROUPS}", Truth.ROW, options)
            producer.produce(
                site.channel.half_topic,
                os.urandom(BODY),
                str(number).encode(),
                number // transaction_size % PARTITIONS,
                headers=list(control.encode()),
            )
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not all halves were acknowledged")


def _commit_checkpoints(site: Site, channel: ChannelDescription, per_partition: int, every: int) -> int:
    """Say that of each so many halves one pends, and all others are settled; how many pend."""
    pending = range(0, per_partition, every)
    checkpoint = HalfCheckpoint(0, per_partition, runs_of(pending))
    consumer = Consumer({**site.kafka(), "group.id": site.channel.relay_group, "enable.auto.commit": False})
    metadata = checkpoint.encode(channel.half.id)
    places = [TopicPartition(channel.half.name, number, 0, metadata) for number in range(PARTITIONS)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    return len(pending) * PARTITIONS


def _port() -> int:
    ports = Ports()
    try:
        return ports.claim()
    finally:
        ports.close()


def _get(port: int, path: str) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except (URLError, OSError):
        return ""


def _pending(port: int) -> int:
    """Transactions that pend in a relay, or lie in the discard topic."""
    wanted = ("outbox_relay_pending{", "outbox_relay_discarded{")
    lines = [line for line in _get(port, "metrics").splitlines() if line.startswith(wanted)]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def _resident(service: Service, field: str) -> float:
    """Memory of a process, megabytes."""
    status = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return round(int(next(line for line in status if line.startswith(field)).split()[1]) * 1024 / MEGABYTE, 1)


def measure_memory(stack: Stack, halves: int, transaction_size: int) -> dict[str, Any]:
    """Memory of a relay that has read so many pending halves."""
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create("orders", partitions=PARTITIONS)
        _produce(site, halves, transaction_size)
        port = _port()
        began = time.monotonic()
        relay = site.relay(extra={"OUTBOX_HTTP_PORT": str(port), "OUTBOX_CHECK_INTERVAL": "30000"})
        wait_until(lambda: _pending(port) >= halves // transaction_size, 300, site.logs)
        seconds = time.monotonic() - began
        time.sleep(5)  # what was read last grows old
        return {
            "halves": halves,
            "messages_per_transaction": transaction_size,
            "body_bytes": BODY,
            "partitions": PARTITIONS,
            "seconds_until_all_pend": round(seconds, 1),
            "resident_mb": _resident(relay, "VmRSS"),
            "peak_mb": _resident(relay, "VmHWM"),
        }


def measure_restore(stack: Stack, halves: int, every: int) -> dict[str, Any]:
    """How long a relay takes from its start until it is ready, and its partitions to restore."""
    with Site(stack.bootstrap_servers, stack.postgres_url) as site:
        channel = site.create("orders", partitions=PARTITIONS)
        _produce(site, halves, 1)
        pending = _commit_checkpoints(site, channel, halves // PARTITIONS, every)
        began = time.monotonic()
        relay = site.relay()
        wait_until(lambda: relay.output().count("a partition is restored") == PARTITIONS, 120, site.logs)
        seconds = time.monotonic() - began
        lines = [json.loads(line) for line in relay.output().splitlines() if "a partition is restored" in line]
        return {
            "halves": halves,
            "pending": pending,
            "partitions": PARTITIONS,
            "seconds_from_process_start_to_restored": round(seconds, 2),
            "seconds_of_restore_per_partition": sorted(line["seconds"] for line in lines),
        }


def main(
    pending: Annotated[int, typer.Option(help="Halves that pend at once.")] = 500_000,
    settled: Annotated[int, typer.Option(help="Halves among which few pend, at the restore.")] = 1_000_000,
) -> None:
    """Measure both; the report is written after each figure."""
    report: dict[str, Any] = {}
    with Stack() as stack:
        report["environment"] = environment(stack)
        report["restore"] = measure_restore(stack, settled, 1_000)
        RESULTS.write_text(json.dumps(report, indent=2) + "\n")
        report["memory"] = []
        for size in (1, 5):
            report["memory"].append(measure_memory(stack, pending, size))
            RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    typer.echo(json.dumps(report, indent=2))


if __name__ == "__main__":
    typer.run(main)
