"""Limits of the cluster that the relay must know by itself: sizes of batches, the end of the half partition."""

import pytest
from confluent_kafka import TopicPartition

from outbox import Message
from outbox._service.exit_codes import Exit
from outbox.protocol.checkpoint import HalfCheckpoint, parse_half_checkpoint, runs_of
from outbox.protocol.record import Record
from relay.delivery.producer import SETTINGS
from relay.delivery.transactional_delivery import take_over
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import Site, wait_until
from tests.support.message_rows import create, insert_rows, relay_settings


def test_a_batch_is_never_larger_than_the_topic_takes(site: Site) -> None:
    """Librdkafka batches up to 1 MB: the whole Kafka transaction would fail, again and again."""
    site.create()
    site.create_topic("small", 3, {"max.message.bytes": "20000"})
    with site.half_outbox() as outbox, site.connect() as connection, outbox.transaction(connection) as transaction:
        for _ in range(1_000):
            transaction.publish(Message(site.topic("small"), b"x" * 100, b"k"))
    site.relay()
    assert len(site.wait_visible(1_000, "small")) == 1_000


def test_a_checkpoint_beyond_the_end_of_the_half_partition_stops_the_relay(site: Site) -> None:
    """As after an unclean election: new records would take the places of lost ones, and pass for settled."""
    half = site.create("orders", partitions=1).half
    metadata = HalfCheckpoint(0, 10, runs_of([0])).encode(half.id, 0)
    site.commit(TopicPartition(half.name, 0, 0, metadata))
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
    place, _ = site.checkpoints()
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


SMALL, RAISED = 2_000, 200_000


def _publish(site: Site, size: int) -> None:
    insert_rows(site, [Message(site.topic("orders"), "x" * size, "table")])
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        publish_bulk(site, outbox, [Message(site.topic("orders"), "x" * size, "half")])


def test_message_that_a_raised_limit_allows_is_delivered(site: Site) -> None:
    """The relay knows the topic since a moment ago, with the limit that it had."""
    site.create(partitions=1)
    create(site)
    site.create_topic("orders", 1, {"max.message.bytes": str(SMALL)})
    relay = site.relay(extra=relay_settings(site))
    _publish(site, 10)
    site.wait_visible(2, "orders")
    site.set_topic(site.topic("orders"), "max.message.bytes", str(RAISED))
    _publish(site, 10 * SMALL)
    found = site.wait_visible(4, "orders")
    assert sorted(len(record.value or b"") for record in found) == [10, 10, 10 * SMALL, 10 * SMALL]
    assert "discarded" not in relay.output()


def test_a_producer_that_was_woken_makes_its_connection_again(site: Site) -> None:
    """It is known by a line of librdkafka's log, which may be worded otherwise in another version."""
    site.create_topics("woken")
    producer = take_over({**SETTINGS, **site.kafka(), "transactional.id": site.name})
    producer.listen()
    assert producer.client_log.coordinator is not None, "librdkafka's line is worded otherwise now"
    producer.wake()
    wait_until(producer.listen, 10.0)
    producer.client.begin_transaction()
    producer.produce([Record(site.topic("woken"), 0, None, b"tea", [], 0)])
    producer.flush()
    producer.client.commit_transaction(-1)
    producer.close()
    assert len(site.read("woken")) == 1
