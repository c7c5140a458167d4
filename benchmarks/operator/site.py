"""A site after a bad night: rows wait, halves are undecided, dead letters lie there, and topics are full."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import Producer

from outbox import Message, Outbox
from tests.support.bulk import send_halves
from tests.support.harness import Site
from tests.support.message_rows import create, execute, relay_settings, wait_empty

RECORD_PARTITIONS = 12
HALF_PARTITIONS = 4

_SMALL = b"x" * 100
_BATCH = 10_000

_COLUMNS = "id, created_at, service, topic, partition, timestamp, key, value, header_names, header_values"


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is.

    Args:
        rows: That wait in the message table.
        halves: Undecided ones; each is the only message of its transaction.
        dead: Rows among the dead letters, for a topic that is missing.
        records: On the real topic, in twelve partitions.
    """

    rows: int
    halves: int
    dead: int
    records: int

    def times(self, share: float) -> Size:
        """Return a share of it."""
        return Size(*(max(10, round(share * getattr(self, name))) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Ids:
    """The transactions that are looked for: one of each state; their keys are the states' names."""

    delivered: str
    waiting: str
    undecided: str


def fill(site: Site, size: Size) -> Ids:
    """Fill a site, whose relay and checker are gone afterwards."""
    site.create(partitions=HALF_PARTITIONS)
    site.create_topics("orders", partitions=RECORD_PARTITIONS)
    create(site)
    outbox = site.outbox()
    _write_records(site, size.records // 2)
    relay = site.relay(extra=relay_settings(site))
    delivered = _publish(site, outbox, "delivered")
    wait_empty(site)
    relay.terminate()
    _write_records(site, size.records // 2)
    execute(site, _INSERT, site.topic("gone"), "dead", size.dead)
    execute(site, _DISCARD)
    waiting = _publish(site, outbox, "waiting")
    execute(site, _INSERT, site.topic("orders"), "row", size.rows)
    with site.half_outbox(publish_timeout_seconds=120.0) as half:
        (entry,) = send_halves(site, half, [Message(site.topic("orders"), "v", "undecided")])
        send_halves(site, half, _messages(site, size.halves))
    return Ids(delivered, waiting, entry.transaction_id)


_INSERT = (
    "INSERT INTO {message} (service, topic, key, value)"
    " SELECT 'orders', %s, convert_to(%s || n, 'UTF8'), convert_to(repeat('x', 100), 'UTF8')"
    " FROM generate_series(1, %s) n"
)
_DISCARD = (
    "WITH gone AS (DELETE FROM {message} RETURNING *) INSERT INTO {discarded} (xid, COLUMNS, reason, detail)"
    " SELECT id::text::xid8, COLUMNS, 'TOPIC_MISSING', 'the topic is missing' FROM gone".replace("COLUMNS", _COLUMNS)
)


def _publish(site: Site, outbox: Outbox, key: str) -> str:
    with site.connect() as connection, connection.transaction():
        receipt = outbox.publish(connection, Message(site.topic("orders"), "v", key))
        return str(receipt.transaction_id)


def _messages(site: Site, count: int) -> Iterator[Message]:
    topic = site.topic("orders")
    return (Message(topic, _SMALL, f"half{number}") for number in range(count))


def _write_records(site: Site, count: int) -> None:
    """Write records as other programs do, with keys of their own."""
    producer, topic = Producer({**site.kafka(), "linger.ms": 50, "partitioner": "murmur2_random"}), site.topic("orders")
    run = uuid.uuid4().hex[:6]
    for number in range(count):
        producer.produce(topic, _SMALL, f"{run}{number}")
        if number % _BATCH == 0:
            while len(producer) > _BATCH * 5:
                producer.poll(0.05)
    if left := producer.flush(120):
        raise TimeoutError(f"{left:,} of {count:,} records were not written within 120 s")
