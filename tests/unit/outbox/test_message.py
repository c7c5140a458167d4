"""Messages that no half could carry are refused when they are made, and spoil no other."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from outbox import Message, MessageRefused
from outbox._half.draft import Draft
from outbox.protocol.half import HalfControl, parse_half
from tests.support.protocol_documents import TRANSACTION

INCARNATION = "018f0000-0000-7000-8000-000000000000"


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
