"""Topics with names such as `orders.check` on a real Kafka: refused only where such a channel exists."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import ResourceType  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox import Message, MessageRefused
from outbox._kafka.channel import create_channel
from outbox.errors import ConfigurationError
from outbox.protocol.discard import DiscardReason, parse_manifest
from outbox.protocol.names import Channel
from outbox.testing import read_committed
from tests.support.harness import Site
from tests.support.raw import RawLog, RawMessage
from tests.support.rights import allow_only
from tests.support.shop import Shop


def _prepare(site: Site) -> tuple[str, Channel, str]:
    """Return a topic whose name no channel has, another channel, and a topic whose half topic is hidden."""
    free, hidden, other = f"{site.name}-free.check", f"{site.name}-hidden.check", Channel(f"{site.name}-other")
    create_channel(site.kafka(), other, partitions=1, replication=1)
    site.create_named_topics(free, hidden, partitions=1)
    allow_only(site, ResourceType.TOPIC, Channel(f"{site.name}-hidden").half_topic)
    return free, other, hidden


def test_relay_delivers_only_to_topics_that_are_of_no_channel(own: Site) -> None:
    description = own.create(partitions=1)
    free, other, hidden = _prepare(own)
    log = RawLog(own, description.half.id)
    log.commit(RawMessage(free, value=b"delivered"))
    expected = {
        log.commit(RawMessage(other.op_topic)): DiscardReason.INTERNAL_TOPIC,
        log.commit(RawMessage(other.half_topic)): DiscardReason.INTERNAL_TOPIC,
        log.commit(RawMessage(hidden)): DiscardReason.NOT_AUTHORIZED,
    }
    log.flush()
    own.relay(extra={"OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "500"})
    own.wait_settled()
    assert [record.value for record in read_committed(own.kafka(), [free])] == [b"delivered"]
    assert read_committed(own.kafka(), [other.op_topic, other.half_topic, hidden]) == []
    discarded = read_committed(own.kafka(), [own.channel.discard_topic])
    manifests = [parse_manifest(record.value) for record in discarded if (record.key or b"").endswith(b"/manifest")]
    assert {manifest.transaction_id: manifest.reason for manifest in manifests} == expected
    details = [manifest.detail for manifest in manifests if manifest.reason is DiscardReason.NOT_AUTHORIZED]
    assert details == [f"the relay lacks DESCRIBE on topic {own.name}-hidden.half"]


def test_publish_refuses_only_topics_of_a_channel(own: Site) -> None:
    own.create(partitions=1)
    free, other, hidden = _prepare(own)
    with Shop(own) as shop:
        with shop.session() as session:
            shop.outbox.publish(session, Message(free, b"accepted"))
        for topic in (other.check_topic, other.half_topic, own.channel.op_topic):
            with shop.session() as session, pytest.raises(MessageRefused, match=f"'{topic}' is an internal topic"):
                shop.outbox.publish(session, Message(topic, b"refused"))
        with shop.session() as session, pytest.raises(ConfigurationError, match="AUTHORIZATION") as refused:
            shop.outbox.publish(session, Message(hidden, b"refused"))
        assert f"{own.name}-hidden.half" in str(refused.value)
