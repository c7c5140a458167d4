"""Manifests: what is written is read again, and checksums add up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.spans import Gap
from spark_jobs.tables.manifest import Checksum, Manifest, PartitionRows, UnitRows

HASHES = st.integers(min_value=-(2**63), max_value=2**63 - 1)


def part(partition: int, rows: int, checksum: str) -> PartitionRows:
    return PartitionRows("orders", partition, "2026-11-21", rows, 10, 10 + rows, rows, 0, checksum)


MANIFEST = Manifest(
    "land",
    "0b4f",
    7,
    {"orders": {"0": 10, "1": 10}},
    {"orders": {"0": 15, "1": 13}},
    {"orders": "lZ2"},
    (part(0, 4, "ffffffffffffffff"), part(1, 2, "0000000000000003")),
    (UnitRows("quarantine", "orders", "2026-11-21", 1), UnitRows("parsed/orders", "orders", "2026-11-21", 5)),
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert Manifest.parse(MANIFEST.encode()) == MANIFEST


def test_manifest_with_gaps_is_read_as_it_was_written() -> None:
    nothing = replace(MANIFEST, partitions=(), beside=(), gaps=(Gap("orders", 0, 10, 14),), retired={"stock": {"0": 3}})
    assert Manifest.parse(nothing.encode()) == nothing


def test_a_manifest_says_the_totals() -> None:
    content = json.loads(MANIFEST.encode())
    assert content["rows"] == 6
    assert content["checksum"] == "0000000000000002"


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": 1}', '{"format": 1, "partitions": [{}]}'])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(OutputError, match="cannot be read"):
        Manifest.parse(text)


def test_a_manifest_of_a_newer_format_is_refused() -> None:
    with pytest.raises(OutputError, match="Upgrade"):
        Manifest.parse('{"format": 2, "anything": 1}')


@given(st.lists(HASHES))
def test_the_sum_of_halves_is_the_sum_of_hashes(hashes: list[int]) -> None:
    high, low = sum(value >> 32 for value in hashes), sum(value & 0xFFFF_FFFF for value in hashes)
    assert Checksum.of_halves(high, low).total == sum(hashes) % 2**64


@given(st.lists(HASHES), st.lists(HASHES))
def test_checksums_add_up(some: list[int], others: list[int]) -> None:
    total = Checksum(sum(some) % 2**64) + Checksum(sum(others) % 2**64)
    assert Checksum.parse(str(total)).total == sum(some + others) % 2**64
