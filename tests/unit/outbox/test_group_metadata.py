"""Metadata of no generation would fence nobody (H5)."""

from __future__ import annotations

import sys

import pytest

from outbox._service.membership import generation
from relay.delivery.producer import DeliveryError
from relay.half.serving.commits import GroupMetadata


def metadata(number: int) -> bytes:
    return b"CGMDv2:" + number.to_bytes(4, sys.byteorder, signed=True) + b"group\0member\0\0"


def group(newest: bytes) -> GroupMetadata:
    found = GroupMetadata()
    found.newest = newest
    return found


@pytest.mark.parametrize("number", [0, 1, 77, 2**31 - 1])
def test_offsets_are_committed_with_a_generation(number: int) -> None:
    assert generation(metadata(number)) == number
    assert group(metadata(number)).for_commit() == metadata(number)


def test_offsets_are_not_committed_without_a_generation() -> None:
    with pytest.raises(DeliveryError, match="no generation"):
        group(metadata(-1)).for_commit()
