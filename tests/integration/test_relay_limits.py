"""Limits of the cluster that the relay must know by itself: sizes of batches, the end of the half partition."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox import Message
from outbox.protocol.checkpoint import HalfCheckpoint, runs_of
from tests.harness import Site


def test_a_batch_is_never_larger_than_the_topic_takes(site: Site) -> None:
    """Librdkafka batches up to 1 MB: the whole Kafka transaction would fail, again and again."""
    site.create()
    small = NewTopic(site.topic("small"), num_partitions=3, replication_factor=1, config={"max.message.bytes": "20000"})
    site.admin.create_topics([small])[small.topic].result(20)
    with (
        site.outbox() as outbox,
        site.connect() as connection,
        outbox.transaction(connection) as transaction,
    ):
        for _ in range(1_000):
            transaction.publish(Message(site.topic("small"), b"x" * 100, b"k"))
    site.relay()
    assert len(site.wait_visible(1_000, "small")) == 1_000


def test_a_checkpoint_beyond_the_end_of_the_half_partition_stops_the_relay(site: Site) -> None:
    """As after an unclean election: new records would take the places of lost ones, and pass for settled."""
    half = site.create("orders").half
    metadata = HalfCheckpoint(0, 10, runs_of([0])).encode(half.id)
    consumer = Consumer({**site.kafka(), "group.id": site.channel.relay_group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(half.name, 0, 0, metadata)], asynchronous=False)
    consumer.close()
    relay = site.relay()
    assert relay.wait() == 4
    assert "has lost records" in relay.output()
