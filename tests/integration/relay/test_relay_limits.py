"""Limits of the cluster that the relay must know by itself: sizes of batches, the end of the half partition."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox import Message
from outbox._service.exit_codes import Exit
from outbox.protocol.checkpoint import HalfCheckpoint, parse_half_checkpoint, runs_of
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import Site, wait_until


def test_a_batch_is_never_larger_than_the_topic_takes(site: Site) -> None:
    """Librdkafka batches up to 1 MB: the whole Kafka transaction would fail, again and again."""
    site.create()
    small = NewTopic(site.topic("small"), num_partitions=3, replication_factor=1, config={"max.message.bytes": "20000"})
    site.admin.create_topics([small])[small.topic].result(20)
    with (
        site.half_outbox() as outbox,
        site.connect() as connection,
        outbox.transaction(connection) as transaction,
    ):
        for _ in range(1_000):
            transaction.publish(Message(site.topic("small"), b"x" * 100, b"k"))
    site.relay()
    assert len(site.wait_visible(1_000, "small")) == 1_000


def test_a_checkpoint_beyond_the_end_of_the_half_partition_stops_the_relay(site: Site) -> None:
    """As after an unclean election: new records would take the places of lost ones, and pass for settled."""
    half = site.create("orders", partitions=1).half
    metadata = HalfCheckpoint(0, 10, runs_of([0])).encode(half.id, 0)
    consumer = Consumer({**site.kafka(), "group.id": site.channel.relay_group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(half.name, 0, 0, metadata)], asynchronous=False)
    consumer.close()
    relay = site.relay()
    assert relay.wait() == Exit.UNSAFE
    assert "has lost records" in relay.output()


def test_bodies_that_were_let_go_are_fetched_again(site: Site) -> None:
    """Delivered, or parked and delivered from there: each with its own key, value and headers."""
    site.create("orders", partitions=1)
    relay = site.relay(
        extra={"OUTBOX_BODY_BYTES": "0", "OUTBOX_UNDECIDED_MAX_AGE_MS": "5000", "OUTBOX_TRANSACTION_TIMEOUT_MS": "500"}
    )
    wait_until(lambda: "Partition restored" in relay.output(), explain=site.logs)
    messages = [Message(site.topic("orders"), f"value {number}", f"key {number}") for number in range(50)]
    with site.half_outbox() as outbox:
        entries = send_halves(site, outbox, messages)
        wait_until(lambda: _head(site) == 50, explain=site.logs)
        for entry in entries[::2]:
            outbox._sender.send_op(entry)
        assert len(site.wait_visible(25, "orders")) == 25
        wait_until(lambda: "Undecided transactions parked" in relay.output(), explain=site.logs)
        for entry in entries[1::2]:
            outbox._sender.send_op(entry)
        found = site.wait_visible(50, "orders")
    assert sorted((record.value or b"", record.key or b"") for record in found) == sorted(
        (f"value {number}".encode(), f"key {number}".encode()) for number in range(50)
    )


def _head(site: Site) -> int:
    consumer = Consumer({**site.kafka(), "group.id": site.channel.relay_group, "isolation.level": "read_committed"})
    (place,) = consumer.committed([TopicPartition(site.channel.half_topic, 0)], 10)
    consumer.close()
    topic_id = (place.metadata or "").split(";")[2]
    return parse_half_checkpoint(place.metadata or "", place.offset, topic_id, place.partition).head


@pytest.mark.long
def test_nothing_is_delivered_after_a_restart_before_what_was_read_long_ago_is_known(site: Site) -> None:
    """An undecided half far below the head keeps those of its key back, although they are read first."""
    site.create("orders", partitions=1)
    slow = {"OUTBOX_TRANSACTION_TIMEOUT_MS": "60000"}
    relay = site.relay(extra=slow)
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        (first,) = send_halves(site, outbox, [Message(site.topic("orders"), "first", "same")])
        publish_bulk(site, outbox, [Message(site.topic("orders"), str(number), str(number)) for number in range(3_000)])
        assert len(site.wait_visible(3_000, "orders")) == 3_000
        wait_until(lambda: _head(site) == 3_001, explain=site.logs)
        relay.kill()
        again = site.relay(extra=slow)
        second, other = publish_bulk(
            site, outbox, [Message(site.topic("orders"), key, key) for key in ("same", "other")]
        )
        found = site.wait_visible(3_001, "orders")
        assert second not in {record.message_id for record in found}
        assert other in {record.message_id for record in found}
        assert '"unsettled": 1,' in again.output()
        outbox._sender.send_op(first)
        found = site.wait_visible(3_003, "orders")
    assert [record.value for record in found if record.key == b"same"] == [b"first", b"same"]
    site.wait_settled()
