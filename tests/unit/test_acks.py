"""Acknowledgements of halves: only one with an offset counts."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Message

from outbox.acks import Acks
from outbox.errors import PublishFailed
from outbox.waiting import BLOCKING


def message(offset: int) -> Message:
    """What a delivery report brings."""
    return Message(topic="outbox.half", partition=0, offset=offset)


def test_the_offsets_come_in_the_order_in_which_they_were_expected() -> None:
    acks = Acks(1.0)
    first, second = acks.expect(), acks.expect()
    second(None, message(7))
    first(None, message(9))
    assert acks.offsets(BLOCKING) == [9, 7]


@pytest.mark.parametrize("offset", [-1, -1_001])
def test_an_acknowledgement_without_an_offset_does_not_count(offset: int) -> None:
    """As librdkafka gives it for DUPLICATE_SEQUENCE_NUMBER (R3)."""
    acks = Acks(1.0)
    first, second = acks.expect(), acks.expect()
    first(None, message(7))
    second(None, message(offset))
    with pytest.raises(PublishFailed, match="without an offset"):
        acks.offsets(BLOCKING)


def test_one_error_fails_them_all() -> None:
    acks = Acks(1.0)
    first, second = acks.expect(), acks.expect()
    first(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), message(-1))
    second(None, message(7))
    with pytest.raises(PublishFailed, match="NOT_ENOUGH_REPLICAS"):
        acks.offsets(BLOCKING)


def test_what_does_not_come_in_time_is_not_stored() -> None:
    acks = Acks(0.01)
    acks.expect()
    with pytest.raises(PublishFailed, match="in time"):
        acks.offsets(BLOCKING)
