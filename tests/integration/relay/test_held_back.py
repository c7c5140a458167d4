"""Kafka gives no checkpoint out while a transaction that commits one has no end: the other partitions go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from outbox import Message
from relay.recovery.hanging_checkpoint import HELD_BACK
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, doubled, wait_until
from tests.support.probes import free_port, metric

COUNT = 40


@contextmanager
def _open_transaction(site: Site, number: int) -> Iterator[None]:
    """Somebody else's, with a partition's checkpoint as it is; aborted in the end."""
    consumer = Consumer({**site.kafka(), "group.id": site.channel.relay_group})
    producer = Producer({**site.kafka(), "transactional.id": f"{site.name}-somebody-else"})
    checkpoint = consumer.committed([TopicPartition(site.channel.half_topic, number)], 20.0)
    producer.init_transactions(20.0)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(checkpoint, consumer.consumer_group_metadata(), 20.0)
    try:
        yield
    finally:
        producer.abort_transaction(20.0)
        consumer.close()


def test_a_checkpoint_that_is_held_back_holds_up_its_own_partition_only(site: Site) -> None:
    site.create("orders", partitions=2)
    port = free_port()
    with site.half_outbox() as outbox:
        publish_bulk(site, outbox, [Message(site.topic("orders"), str(n), f"key{n}") for n in range(COUNT)])
    with _open_transaction(site, 0):
        relay = site.relay(extra={"OUTBOX_HTTP_PORT": str(port)})
        wait_until(lambda: HELD_BACK in relay.output(), explain=site.logs)
        wait_until(lambda: bool(site.read("orders")), explain=site.logs)
        assert metric(port, "outbox_relay_partitions", state="not_served") == 1
        assert metric(port, "outbox_relay_partitions", state="served") == 1
        assert len(site.read("orders")) < COUNT
    found = site.wait_visible(COUNT, "orders")
    assert not doubled(found)
    wait_until(lambda: metric(port, "outbox_relay_partitions", state="not_served") == 0, explain=site.logs)
