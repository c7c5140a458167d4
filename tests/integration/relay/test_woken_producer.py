"""What wakes a producer breaks its connection to the transaction coordinator, and nothing else (R79)."""

from __future__ import annotations

from outbox.protocol.record import Record
from relay.delivery.producer import SETTINGS
from relay.delivery.transactional_delivery import take_over
from tests.support.harness import Site, wait_until


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
