"""Ids of consumed records, as the clients of Kafka give them."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from outbox._consume.record_id import message_id_of
from outbox.errors import UsageError

ID = "018f0000-0000-7000-8000-000000000000/0"


def attributes(headers: object) -> SimpleNamespace:
    return SimpleNamespace(topic="orders", partition=3, offset=7, headers=headers)


@pytest.mark.parametrize(
    "record",
    [
        Message("orders", 3, 7, headers=[("type", b"created"), ("outbox-id", ID.encode())]),
        attributes((("type", b"created"), ("outbox-id", ID.encode()))),
        SimpleNamespace(headers={"type": "created", "outbox-id": ID}),  # of FastStream
        ID,
    ],
)
def test_message_id_of_each_client_is_read(record: Any) -> None:
    assert message_id_of(record) == ID


@pytest.mark.parametrize("headers", [None, (), (("outbox-id", b"a"), ("outbox-id", b"b"))])
def test_record_without_one_id_is_refused(headers: tuple[tuple[str, bytes]] | None) -> None:
    record: Any
    for record in (attributes(headers), Message("orders", 3, 7, headers=list(headers or ()))):
        with pytest.raises(UsageError, match=rf"orders/3/7 has {len(headers or ())} headers 'outbox-id', not one"):
            message_id_of(record)


@pytest.mark.parametrize("value", [None, b"", "", 7, b"\xff", b"x" * 256, b"a\0"])
def test_attribute_record_with_malformed_id_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="header 'outbox-id' of record orders/3/7 is not a message id"):
        message_id_of(attributes([("outbox-id", value)]))


@pytest.mark.parametrize("given", [b"018f/0", None, 7])
def test_object_without_headers_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=rf"{type(given).__name__} has no headers: give once\(\) the record"):
        message_id_of(given)


@pytest.mark.parametrize("text", ["", "x" * 256])
def test_text_of_another_length_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"1 to 255 characters, this one has {len(text)}"):
        message_id_of(text)
