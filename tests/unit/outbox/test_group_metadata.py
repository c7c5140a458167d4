"""Metadata of no generation would fence nobody (H5)."""

from __future__ import annotations

import sys

import pytest

from outbox._service.membership import generation
from relay.kafka.producer import DeliveryError
from relay.service import RelayService


def metadata(number: int) -> bytes:
    """As librdkafka writes it."""
    return b"CGMDv2:" + number.to_bytes(4, sys.byteorder, signed=True) + b"group\0member\0\0"


def service(group_metadata: bytes) -> RelayService:
    """A relay of which nothing is there but what its consumer says of its group."""
    found = RelayService.__new__(RelayService)
    found._group_metadata = group_metadata
    return found


@pytest.mark.parametrize("number", [0, 1, 77, 2**31 - 1])
def test_offsets_are_committed_with_a_generation(number: int) -> None:
    assert generation(metadata(number)) == number
    assert service(metadata(number))._current_group_metadata() == metadata(number)


def test_offsets_are_not_committed_without_a_generation() -> None:
    with pytest.raises(DeliveryError, match="no generation"):
        service(metadata(-1))._current_group_metadata()
