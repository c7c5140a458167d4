"""What fits on a real Kafka: `publish()` refuses what is too large, and all the rest is delivered."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox import Message, MessageRefused
from outbox._half.draft import Draft
from outbox._kafka.channel import verify_channel
from outbox.protocol.size import real_record_size, record_size
from tests.support.protocol_documents import TRANSACTION
from tests.support.shop import Shop

LIMIT = 4_000
HEADERS: list[tuple[str, bytes | str | None]] = [(f"h{number}", b"") for number in range(60)]


def _small_topic(shop: Shop, name: str, limit: int = LIMIT) -> str:
    """Create a real topic of one partition with this `max.message.bytes`; return its short name."""
    topic = NewTopic(shop.site.topic(name), 1, 1, config={"max.message.bytes": str(limit)})
    shop.site.admin.create_topics([topic])[topic.topic].result(20.0)
    return name


def test_message_with_60_headers_on_small_topic_is_delivered(shop: Shop) -> None:
    """The first is as large as the topic takes. One byte more is refused, and the transaction goes on."""
    topic = shop.site.topic(_small_topic(shop, "small"))
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
    topic = shop.site.topic(_small_topic(shop, "ample", 2 * half_limit))
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
