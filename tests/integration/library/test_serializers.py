"""Objects published to a real topic are read back from it by the deserializers of those who made the formats."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from cloudevents.core.v1.event import CloudEvent
from confluent_kafka.schema_registry import header_schema_id_serializer

from outbox import Message
from outbox.cloudevents import event_message
from outbox.serialization import TypedTopic
from outbox.testing import VisibleRecord
from tests.support.schemas import SCHEMAS, Schema, new_registry
from tests.support.shop import Shop


def send(shop: Shop, topic: str, *messages: Message) -> list[VisibleRecord]:
    """Publish in one transaction; what a read_committed reader gets."""
    with shop.session() as session:
        for message in messages:
            shop.outbox.publish(session, message)
    return shop.records(len(messages), topic)


@pytest.mark.parametrize("schema", SCHEMAS, ids=[schema.name for schema in SCHEMAS])
@pytest.mark.parametrize("place", ["magic bytes", "header"])
def test_a_message_with_a_schema_is_read_back(shop: Shop, schema: Schema, place: str) -> None:
    registry, topic = new_registry(), shop.topic()
    conf = {"schema.id.serializer": header_schema_id_serializer} if place == "header" else {}
    orders: TypedTopic[str, Any] = TypedTopic(shop.site.topic(topic), value=schema.serializer(registry, conf))
    (found,) = send(shop, topic, orders.message(schema.value, key="42", headers={"type": "created"}))
    assert found.key == b"42"
    assert ((found.value or b"")[:1] == b"\x00") is (place == "magic bytes")
    names = [name for name, _ in found.headers if not name.startswith("outbox-")]
    assert names == (["type", "__value_schema_id"] if place == "header" else ["type"])
    assert schema.read(registry, orders.name, found.value, found.headers) == schema.value


def test_json_and_tombstones(shop: Shop) -> None:
    topic = shop.topic()
    orders: TypedTopic[str, dict[str, Any]] = TypedTopic(shop.site.topic(topic))
    order = {"id": UUID(int=7), "total": Decimal("9.90"), "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "name": "Zoë ☃"}
    made, gone = orders.message(order, key="7", partition=0), orders.message(None, key="7", partition=0)
    first, second = send(shop, topic, made, gone)
    assert json.loads(first.value or b"") == {
        "id": "00000000-0000-0000-0000-000000000007",
        "total": "9.90",
        "at": "2026-01-02T00:00:00+00:00",
        "name": "Zoë ☃",
    }
    assert (second.key, second.value) == (b"7", None)


@pytest.mark.parametrize(
    "event",
    [
        CloudEvent(
            {"source": "/orders", "type": "order.created", "subject": "42", "partitionkey": "kéy", "tenant": "nörd"},
            {"total": 7, "name": "Zoë"},
        ),
        CloudEvent({"source": "/orders", "type": "scan", "datacontenttype": "image/png"}, b"\x89PNG\xff\x00"),
        CloudEvent({"source": "/orders", "type": "order.closed"}),
    ],
    ids=["json", "bytes", "no data"],
)
def test_the_sdk_reads_a_cloudevent_from_the_real_topic(shop: Shop, event: CloudEvent) -> None:
    topic = shop.topic()
    (found,) = send(shop, topic, event_message(shop.site.topic(topic), event))
    headers = {name: value or b"" for name, value in found.headers}
    received = from_kafka_event(KafkaMessage(headers, found.key, found.value or b""))
    assert received.get_attributes() == event.get_attributes()
    assert received.get_data() == event.get_data()
    assert found.value is not None
