"""`assert_published`: what fits, what does not, and what it says then."""

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox import Message
from outbox.async_half_outbox import AsyncHalfOutbox
from outbox.testing import InMemoryHalfOutbox, VisibleRecord, assert_published


@pytest.fixture
def outbox() -> InMemoryHalfOutbox:
    made = InMemoryHalfOutbox()
    with Session(create_engine("sqlite://")) as session, session.begin():
        made.publish_many(
            session,
            [
                Message("orders", '{"id": 42}', "42", {"type": "created"}),
                Message("orders", "[1, 2]", b"43", [("type", "a"), ("none", None)]),
                Message("orders", None, "44"),
                Message("payments", b"\xff", None),
            ],
        )
    return made


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders", {}),
        ("orders", {"count": 3}),
        ("orders", {"key": "42", "value": '{"id": 42}', "count": 1}),
        ("orders", {"key": b"42", "value": b'{"id": 42}'}),
        ("orders", {"value": {"id": 42}, "headers": {"type": "created"}}),
        ("orders", {"value": [1, 2], "headers": {"type": b"a", "none": None}}),
        ("orders", {"value": lambda value: value is not None and b"42" in value, "count": 1}),
        ("orders", {"value": None, "key": "44", "count": 1}),
        ("payments", {"value": b"\xff", "key": None, "count": 1}),
        ("payments", {"value": {"id": 1}, "count": 0}),
        ("payments", {"value": None, "count": 0}),
        ("refunds", {"count": 0}),
    ],
)
def test_what_fits(outbox: InMemoryHalfOutbox, topic: str, expected: Mapping[str, Any]) -> None:
    found = assert_published(outbox, topic, **expected)
    assert all(record.topic == topic for record in found)
    assert len(found) == expected.get("count", len(found))
    assert assert_published(AsyncHalfOutbox.over(outbox), topic, **expected) == found


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("refunds", {}),
        ("orders", {"count": 2}),
        ("orders", {"value": "42"}),
        ("orders", {"value": {"id": 43}}),
        ("orders", {"key": None}),
        ("orders", {"key": "42", "headers": {"type": "deleted"}}),
        ("orders", {"key": "42", "headers": {"type": None}}),
        ("payments", {"value": [1]}),
        ("payments", {"count": 0}),
    ],
)
def test_what_does_not_fit(outbox: InMemoryHalfOutbox, topic: str, expected: Mapping[str, Any]) -> None:
    with pytest.raises(AssertionError, match=f"topic '{topic}'"):
        assert_published(outbox, topic, **expected)


def test_the_failure_shows_what_was_published_and_what_is_different(outbox: InMemoryHalfOutbox) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_published(outbox, "orders", value={"id": 42}, key="41", headers={"type": "a"}, count=2)
    assert str(caught.value).splitlines() == [
        "2 message(s) on topic 'orders' with value {'id': 42}, key b'41', header 'type': b'a' expected, 0 published",
        "messages published in total: 4",
        "  'orders' value b'{\"id\": 42}' key b'42' headers {'type': b'created'}: different key, header 'type'",
        "  'orders' value b'[1, 2]' key b'43' headers {'type': b'a', 'none': None}: different value, key",
        "  'orders' value None key b'44': different value, key, header 'type'",
        "  'payments' value b'\\xff' key None: different topic",
    ]


def test_the_failure_says_what_fits_when_there_are_too_many(outbox: InMemoryHalfOutbox) -> None:
    with pytest.raises(AssertionError, match=r"0 message\(s\) on topic 'payments' expected, 1 published") as caught:
        assert_published(outbox, "payments", count=0)
    assert "'payments' value b'\\xff' key None: matches" in str(caught.value)


def test_the_failure_names_transactions_that_are_open() -> None:
    outbox = InMemoryHalfOutbox()
    with Session(create_engine("sqlite://")) as session:
        outbox.publish(session, Message("orders", "v"))
        with pytest.raises(AssertionError, match=r"still open: 1\. Commit them"):
            assert_published(outbox, "orders")
        assert assert_published(outbox.uncommitted, "orders", value="v", count=1) == outbox.uncommitted
        session.commit()
        with pytest.raises(AssertionError, match="`published` has what was committed"):
            assert_published(outbox.uncommitted, "orders")


def test_the_failure_stays_readable() -> None:
    outbox = InMemoryHalfOutbox()
    with Session(create_engine("sqlite://")) as session, session.begin():
        outbox.publish_many(session, [Message("orders", "x" * 10_000)] * 100)
    with pytest.raises(AssertionError) as caught:
        assert_published(outbox, "orders", count=1)
    lines = str(caught.value).splitlines()
    assert lines[1:3] == ["messages published in total: 100", "  … 80 before these"]
    assert len(lines) == 23
    assert max(map(len, lines)) < 500


def test_records_of_a_reader_are_compared_without_the_relays_headers() -> None:
    headers = (("type", b"created"), ("outbox-id", b"1/0"), ("outbox-service", b"orders"))
    record = VisibleRecord("orders", 0, 7, b"42", b"v", headers, 1_000)
    assert assert_published([record], "orders", headers={"type": "created"}, count=1) == [record]
    with pytest.raises(AssertionError) as caught:
        assert_published([record], "orders", key="41")
    assert "headers {'type': b'created'}: different key" in str(caught.value)
    assert "outbox-" not in str(caught.value)
