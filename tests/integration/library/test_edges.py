"""What is published arrives byte for byte: next to an ordinary producer's, no record is told from the other."""

import datetime as dt
import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import header_schema_id_serializer
from opentelemetry.sdk.trace import TracerProvider

from outbox import Message, MessageRefused
from outbox._half.draft import Draft
from outbox._kafka.channel import verify_channel
from outbox._publish.tracing import with_trace
from outbox.protocol.half import Headers
from outbox.protocol.names import HEADER_PREFIX
from outbox.protocol.size import real_record_size, record_size
from outbox.serialization import TypedTopic
from outbox.testing import VisibleRecord
from tests.support.protocol_documents import TRANSACTION
from tests.support.schemas import SCHEMAS, Schema, new_registry
from tests.support.shop import Shop

HOUR = 3_600_000

EDGES = {
    "earliest timestamp": Message("t", b"v", b"k", timestamp=1),
    "timestamp beyond 32 bits of seconds": Message("t", b"v", b"k", timestamp=2**31),
    "timestamp of yesterday": Message("t", b"v", b"k", timestamp=int(time.time() * 1000) - 24 * HOUR),
    "timestamp in the near future": Message("t", b"v", b"k", timestamp=int(time.time() * 1000) + HOUR // 2),
    "tombstone": Message("t", None, b"k"),
    "tombstone with headers": Message("t", None, b"k", headers={"type": "deleted"}),
    "empty value": Message("t", b"", b"k"),
    "empty text": Message("t", "", b"k"),
    "nothing at all": Message("t"),
    "empty key": Message("t", b"v", b""),
    "empty text as key": Message("t", b"v", ""),
    "no key": Message("t", b"v", None),
    "empty key and value": Message("t", b"", b""),
    "every byte": Message("t", bytes(range(256)), bytes(range(256)), headers={"bytes": bytes(range(256))}),
    "zero bytes": Message("t", b"\x00", b"\x00", headers={"zero": b"\x00"}),
    "bytes that are no UTF-8": Message("t", b"\xff\xfe", b"\xc3\x28"),
    "text": Message("t", "tëxt ☃ 😀", "kéy ☃", headers={"naïve ☃ 😀": "välue ☃"}),
    "header values of all kinds": Message(
        "t", b"v", headers={"none": None, "empty": b"", "text": "x", "bytes": b"\xff"}
    ),
    "header without a name": Message("t", b"v", headers={"": b"nameless"}),
    "repeated header names": Message(
        "t", b"v", headers=[("a", b"1"), ("b", None), ("a", b""), ("a", None), ("a", b"1")]
    ),
    "header names that differ in case": Message("t", b"v", headers=[("Type", b"1"), ("type", b"2"), ("TYPE", b"3")]),
    "many headers": Message("t", b"v", headers=[(f"h{number % 7}", str(number)) for number in range(300)]),
    "long header name": Message("t", b"v", headers={"x" * 5_000: b"v"}),
    "names that only look reserved": Message(
        "t", b"v", headers={"outbox": b"1", "Outbox-id": b"2", "x-outbox-id": b"3"}
    ),
    "large value": Message("t", b"\x00\xff" * 250_000, b"k"),
    "long key": Message("t", b"v", b"\xff" * 50_000),
}


def written(message: Message) -> tuple[bytes | None, bytes | None, Headers]:
    return message.key_bytes(), message.value_bytes(), message.header_list()


def stored(record: VisibleRecord) -> tuple[bytes | None, bytes | None, Headers]:
    """What Kafka stored, without what the relay adds."""
    return record.key, record.value, [header for header in record.headers if not header[0].startswith(HEADER_PREFIX)]


def publish(shop: Shop, topic: str, messages: Sequence[Message]) -> None:
    with shop.session() as session:
        for message in messages:
            shop.outbox.publish(session, replace(message, topic=shop.site.topic(topic), partition=0))


def test_every_edge_is_what_an_ordinary_producer_would_have_written(shop: Shop) -> None:
    ours, theirs = shop.topic(), shop.topic()
    publish(shop, ours, list(EDGES.values()))
    producer = Producer(shop.site.kafka())
    for message in EDGES.values():
        rest: dict[str, Any] = {"timestamp": message.timestamp or 0, "headers": list(message.header_list())}
        producer.produce(shop.site.topic(theirs), message.value, message.key, 0, **rest)
    assert producer.flush(30) == 0
    published, produced = shop.records(len(EDGES), ours), shop.records(len(EDGES), theirs)
    assert [stored(record) for record in published] == [stored(record) for record in produced]
    assert all(one.timestamp in {None, found.timestamp} for one, found in zip(EDGES.values(), published, strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_arrive_as_they_are(shop: Shop, seed: int) -> None:
    chance = random.Random(seed)

    def some_bytes() -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(1), chance.randbytes(chance.randrange(200))])

    def name() -> str:
        return "".join(
            chr(chance.choice([chance.randrange(1, 128), chance.randrange(0x100, 0xD800)])) for _ in range(3)
        )

    messages = [
        Message(
            "t",
            some_bytes(),
            some_bytes(),
            headers=[(name(), some_bytes()) for _ in range(chance.randrange(6))],
            timestamp=chance.choice([None, chance.randrange(1, 1_700_000_000_000)]),
        )
        for _ in range(200)
    ]
    topic = shop.topic()
    publish(shop, topic, messages)
    found = shop.records(len(messages), topic)
    assert [stored(record) for record in found] == [written(message) for message in messages]
    assert all(message.timestamp in {None, record.timestamp} for message, record in zip(messages, found, strict=True))


def test_the_trace_of_the_publisher_reaches_the_consumer(shop: Shop) -> None:
    topic = shop.topic()
    with TracerProvider().get_tracer("tests").start_as_current_span("order") as span:
        publish(shop, topic, [with_trace(Message("t", b"v", headers={"type": "created"}))])
    (found,) = shop.records(1, topic)
    headers = dict(stored(found)[2])
    assert headers.keys() == {"type", "traceparent"}
    assert f"{span.get_span_context().trace_id:032x}" in (headers["traceparent"] or b"").decode()


LIMIT = 4_000
HEADERS: list[tuple[str, bytes | str | None]] = [(f"h{number}", b"") for number in range(60)]


def test_message_with_60_headers_on_small_topic_is_delivered(shop: Shop) -> None:
    """The first is as large as the topic takes. One byte more is refused, and the transaction goes on."""
    topic = shop.site.topic("small")
    shop.site.create_topic("small", 1, {"max.message.bytes": str(LIMIT)})
    room = LIMIT - real_record_size(b"k", b"", HEADERS, shop.outbox.settings.service) - 1  # its length takes one
    with shop.session() as session:
        shop.outbox.publish(session, Message(topic, bytes(room), b"k", HEADERS))
        with pytest.raises(MessageRefused, match=rf"{LIMIT + 1} bytes .* at most {LIMIT} "):
            shop.outbox.publish(session, Message(topic, bytes(room + 1), b"k", HEADERS))
        shop.outbox.publish(session, Message(topic, bytes(2_800), b"k", HEADERS))
    assert [len(record.value or b"") for record in shop.records(2, "small")] == [room, 2_800]


def test_largest_half_that_is_accepted_is_delivered(shop: Shop) -> None:
    """Of a transaction whose ordering key has 2,000 bytes; all its halves carry it, percent-encoded."""
    half_limit = verify_channel(shop.site.admin, shop.site.channel).half.max_message_bytes
    topic = shop.site.topic("ample")
    shop.site.create_topic("ample", 1, {"max.message.bytes": str(2 * half_limit)})
    first = Message(topic, b"first", "\u00e4" * 1_000)
    draft = Draft(TRANSACTION)
    draft.add([first])

    def half_size(value: int) -> int:
        half = draft.planned([Message(topic, bytes(value), b"k")], shop.outbox.settings.service, "shop.half")[0].make()
        return record_size(half.key, half.value, half.headers)

    room = next(value for value in range(half_limit, 0, -1) if half_size(value) <= half_limit)
    with shop.session() as session:
        shop.outbox.publish(session, first)
        with pytest.raises(MessageRefused, match=rf"6000 for the ordering key.*at most {half_limit} "):
            shop.outbox.publish(session, Message(topic, bytes(room + 1), b"k"))
        shop.outbox.publish(session, Message(topic, bytes(room), b"k"))
    assert [len(record.value or b"") for record in shop.records(2, "ample")] == [5, room]


def send(shop: Shop, topic: str, *messages: Message) -> list[VisibleRecord]:
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
