"""A topic of many records with the headers of the relay, to be landed."""

from __future__ import annotations

import os

from confluent_kafka import Producer

from outbox.protocol.half import HalfControl, Truth, real_headers
from outbox.protocol.identifiers import make_transaction_id
from tests.support.harness import Site

BODY_BYTES = 256
AT_ONCE = 10_000
"""Records of one Kafka transaction; a relay under load writes thousands in one, too."""

_TIME = 1_800_000_000_000


def write_records(site: Site, topic: str, records: int, keys: int | None = None) -> None:
    """Write so many records, as the relay would.

    Args:
        topic: Full name of the topic.
        keys: How many there are; without, each record has another.
    """
    producer = Producer(
        {
            **site.kafka(),
            "transactional.id": f"{site.name}-records",
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    producer.init_transactions()
    body = os.urandom(BODY_BYTES)  # no codec makes it smaller
    for first in range(0, records, AT_ONCE):
        producer.begin_transaction()
        for number in range(first, min(first + AT_ONCE, records)):
            control = HalfControl(topic, -1, make_transaction_id(_TIME, os.urandom(10)), 0, "orders", Truth.ROW)
            headers = real_headers(control, [("type", b"changed")], 0, number)
            producer.produce(topic, body, b"key-%d" % (number % (keys or records)), headers=headers)
        producer.commit_transaction()
