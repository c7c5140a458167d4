"""Messages, refused when they are made if no half could carry them, and drafts: those of one local transaction."""

from enum import IntEnum
from typing import Any

import pytest

from outbox import Message, MessageRefused
from outbox._half.draft import Draft
from outbox._publish.acceptance import MAX_BYTES
from outbox.protocol.half import MAX_MILLISECONDS, HalfControl, parse_half
from outbox.protocol.record import Record
from tests.support.protocol_documents import INCARNATION, TRANSACTION
from tests.support.protocol_strategies import consumed


def draft(*messages: Message) -> Draft:
    found = Draft(TRANSACTION)
    for message in messages:
        found.add([message])
    return found


def control(half: Record) -> HalfControl:
    return parse_half(consumed(half.headers))


def halves(found: Draft) -> list[Record]:
    return [half for _, half in found.take_unsent("shop", INCARNATION, "shop.half", 0)]


def controls(found: Draft) -> list[HalfControl]:
    return [control(half) for half in halves(found)]


def test_halves_carry_what_the_user_wrote_and_where_it_goes() -> None:
    message = Message("orders", value="é", key="42", headers=[("a", "1"), ("a", None)], partition=3, timestamp=77)
    (half,) = halves(draft(message))
    assert (half.key, half.value) == (b"42", "é".encode())
    assert half.headers[-2:] == [("a", b"1"), ("a", None)]
    found = control(half)
    assert (found.topic, found.partition, found.position, found.service) == ("orders", 3, 0, "shop")
    assert (found.transaction_id, found.options.timestamp) == (TRANSACTION, 77)
    assert found.options.incarnation == INCARNATION


@pytest.mark.parametrize("first", [b"42", b"", None])
@pytest.mark.parametrize("second", [b"42", b"7", b"", None])
def test_all_halves_have_the_ordering_key_of_the_first(first: bytes | None, second: bytes | None) -> None:
    found = draft(Message("orders", key=first), Message("stock", key=second))
    assert found.ordering_key == first
    assert [one.ordering_key(key) for one, key in zip(controls(found), (first, second), strict=True)] == [first, first]


def test_receipts_name_the_position() -> None:
    found = Draft(TRANSACTION)
    assert [found.add([Message("orders")])[0].message_id for _ in range(3)] == [f"{TRANSACTION}/{n}" for n in range(3)]


def test_a_struck_position_is_not_used_again() -> None:
    found = draft(Message("a"), Message("b"), Message("c"))
    found.strike(1)
    assert found.add([Message("d")])[0].position == 3
    assert str(found.positions) == "0,3"
    assert [(one.topic, one.position) for one in controls(found)] == [("a", 0), ("d", 3)]
    assert len(found) == 2


def test_after_a_strike_the_first_message_that_counts_gives_the_ordering_key() -> None:
    found = draft(Message("a", key=b"struck"))
    found.strike(0)
    found.add([Message("b", key=b"42")])
    assert found.ordering_key == b"42"
    assert controls(found)[0].options.ordering is None


def test_everything_can_be_struck() -> None:
    found = draft(Message("a"))
    found.strike(0)
    assert len(found) == 0
    assert str(found.positions) == "-"


def test_ten_thousand_messages_are_allowed_and_no_more() -> None:
    found = draft(*[Message("a")] * 10_000)
    assert str(found.positions) == "0-9999"
    with pytest.raises(MessageRefused, match=r"10000.*Publish further ones in another one"):
        found.add([Message("a")])
    found.strike(5)
    with pytest.raises(MessageRefused, match="10000"):
        found.add([Message("a")])


def test_a_transaction_has_a_limit_of_bytes_that_struck_messages_give_back() -> None:
    half = Message("a", value=bytes(MAX_BYTES // 2))
    found = draft(half, half)
    with pytest.raises(MessageRefused, match="bytes"):
        found.add([Message("a", value=b"x")])
    assert len(found) == 2, "a refused message leaves no trace"
    for _ in range(3):
        found.strike(1)
        assert found.add([half])[0].position > 1


def test_a_timestamp_that_no_half_can_carry_is_refused_at_once() -> None:
    """Microseconds instead of milliseconds: the relay could not parse the half, and the message would be lost."""
    found = draft(Message("a", timestamp=MAX_MILLISECONDS))
    assert controls(found)[0].options.timestamp == MAX_MILLISECONDS
    with pytest.raises(MessageRefused, match=r"is too large\. Give ms"):
        found.add([Message("a", timestamp=1_751_000_000_000_000)])


class Queue(IntEnum):
    SECOND = 1


def _half(message: Message) -> HalfControl:
    draft = Draft(TRANSACTION)
    draft.add([message])
    ((_, half),) = draft.take_unsent("orders", INCARNATION, "shop.half", 0)
    return parse_half([(name, value if isinstance(value, bytes) else None) for name, value in half.headers])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"timestamp": 1_700_000_000_000.5}, "The timestamp is of type float. Give an integer."),
        ({"timestamp": True}, "The timestamp is of type bool. Give an integer."),
        ({"timestamp": "1700000000000"}, "The timestamp is of type str. Give an integer."),
        ({"partition": True}, "The partition is of type bool. Give an integer."),
        ({"partition": 1.0}, "The partition is of type float. Give an integer."),
        ({"partition": None}, "The partition is of type NoneType. Give an integer."),
        ({"partition": 1 << 31}, "Partition 2147483648 is too large."),
        ({"topic": ["orders"]}, "The topic is of type list. It must be text."),
        ({"headers": {3: b"x"}}, "The name of a header is of type int. It must be text."),
        ({"headers": "abc"}, "The headers are of type str. Give a mapping, or a list of pairs of name and value."),
        ({"headers": ["ab"]}, "The headers are of type list. Give a mapping"),
        ({"headers": 7}, "The headers are of type int. Give a mapping"),
    ],
)
def test_what_no_relay_could_read_is_refused(given: dict[str, Any], says: str) -> None:
    """Else its transaction would commit, and lie in the discard topic as malformed."""
    with pytest.raises(MessageRefused, match=says):
        Message(**({"topic": "orders", "value": b"x"} | given))


def test_a_number_of_another_type_is_written_in_digits() -> None:
    assert _half(Message("orders", partition=Queue.SECOND, timestamp=Queue.SECOND)).partition == 1


def test_what_was_refused_spoils_no_other_message() -> None:
    """`True`, `1` and `1.0` are one key of a dict, and what halves have in common is remembered."""
    for partition in (True, 1.0):
        with pytest.raises(MessageRefused):
            Message("remembered", partition=partition)  # type: ignore[arg-type]  # mistakes of a user
    control = _half(Message("remembered", partition=1))
    assert (control.topic, control.partition) == ("remembered", 1)
