"""A relay whose producer was fenced: somebody else has the partition, until the service says otherwise."""

import pytest
from confluent_kafka import KafkaException, Producer

from outbox import Message
from outbox.protocol.record import Record
from relay.delivery.producer import DeliveryError
from relay.delivery.transactional_delivery import TransactionalDelivery
from tests.support.bulk import publish_bulk
from tests.support.harness import Site, wait_until


class _NewOwner:
    def __init__(self, site: Site, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({**site.kafka(), "transactional.id": site.channel.transactional_id(0)})
        self._producer.init_transactions(20.0)

    def can_write(self) -> bool:
        try:
            self._producer.begin_transaction()
            self._producer.produce(self._topic, b"of the new owner")
            self._producer.commit_transaction(20.0)
        except KafkaException:
            return False
        return True


def test_a_relay_that_was_fenced_leaves_the_new_owner_alone(site: Site) -> None:
    """Or the two would fence each other for ever; it asks its service first."""
    site.create("orders", "others", partitions=1)
    relay = site.relay()
    wait_until(lambda: '"serving": [0]' in relay.output(), explain=site.logs)
    owner = _NewOwner(site, site.topic("others"))
    with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
        publish_bulk(site, outbox, [Message(site.topic("orders"), "v", "k")])
    refused = []

    def asked_its_group() -> bool:
        refused.extend([] if owner.can_write() else ["the relay took the partition back"])
        return "Rejoining the consumer group" in relay.output() or bool(refused)

    wait_until(asked_its_group, 25, explain=site.logs)
    assert "Rejoining the consumer group" in relay.output(), refused
    assert [record.value for record in site.wait_visible(1, "orders")] == [b"v"]


@pytest.mark.parametrize("count", [1, 2, pytest.param(1_000, marks=pytest.mark.long)])
def test_a_producer_that_is_fenced_while_its_messages_are_on_their_way(site: Site, count: int) -> None:
    """confluent-kafka ends its flush in more than one way then; the relay must hear that it was fenced."""
    site.create("orders")
    for _ in range(5):
        former = TransactionalDelivery(site.kafka(), site.channel.transactional_id(0))
        TransactionalDelivery(site.kafka(), site.channel.transactional_id(0)).close()
        records = [Record(site.topic("orders"), -1, b"%d" % number, b"v", [], 0) for number in range(count)]
        with pytest.raises(DeliveryError) as caught:
            former.commit(records, [], b"")
        assert caught.value.fenced
        former.close()
    assert site.read("orders") == []
