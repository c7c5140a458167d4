"""The reconciler of the demo finds what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.flights.digest import Header, digest
from examples.flights.reconcile import Seen, Told, reconcile

TOPIC = "flights.departures"


def _records() -> list[Seen]:
    records = [Seen(f"tx{n}/0", TOPIC, 0, 2 * n, b"N14228", f"digest {n}", n + 1) for n in range(10)]
    return [*records, Seen("tx10/0", TOPIC, 1, 0, None, "digest 10", None)]


def _told() -> dict[str, Told]:
    return {record.id: Told(record.topic, record.digest) for record in _records()}


def test_a_clean_run_is_clean() -> None:
    result = reconcile(_told(), _records())
    assert result.clean
    assert result.seen == 11


def test_one_lost_message_is_found() -> None:
    result = reconcile(_told(), [record for record in _records() if record.id != "tx4/0"])
    assert result.lost == ["tx4/0"]
    assert (result.doubled, result.phantom, result.out_of_order) == ([], [], [])
    assert not result.clean


def test_one_doubled_message_is_found() -> None:
    result = reconcile(_told(), [*_records(), replace(_records()[10], offset=7)])
    assert result.doubled == ["tx10/0"]
    assert (result.lost, result.phantom, result.out_of_order) == ([], [], [])
    assert not result.clean


def test_one_phantom_message_is_found() -> None:
    result = reconcile(_told(), [*_records(), Seen("never/0", TOPIC, 1, 9, None, "digest", None)])
    assert result.phantom == ["never/0"]
    assert (result.lost, result.doubled, result.out_of_order) == ([], [], [])
    assert not result.clean


def test_two_swapped_messages_are_found() -> None:
    records = _records()
    records[3], records[4] = replace(records[3], offset=8), replace(records[4], offset=6)
    result = reconcile(_told(), records)
    assert result.out_of_order == ["tx3/0"]
    assert (result.lost, result.doubled, result.phantom) == ([], [], [])
    assert not result.clean


@pytest.mark.parametrize("change", [{"digest": "other"}, {"topic": "flights.delays"}])
def test_changed_content_or_topic_is_lost_and_phantom(change: dict[str, str]) -> None:
    records = _records()
    records[10] = replace(records[10], topic=change.get("topic", TOPIC), digest=change.get("digest", "digest 10"))
    result = reconcile(_told(), records)
    assert (result.lost, result.phantom) == (["tx10/0"], ["tx10/0"])


def test_a_record_without_id_is_a_phantom() -> None:
    assert reconcile(_told(), [*_records(), Seen("", TOPIC, 2, 0, None, "digest", None)]).phantom == [""]


def test_every_byte_and_every_absence_changes_the_digest() -> None:
    variants: list[tuple[bytes | None, bytes | None, list[Header]]] = [
        (b"k", b"v", [("a", b"1")]),
        (None, b"v", [("a", b"1")]),
        (b"", b"v", [("a", b"1")]),
        (b"k", None, [("a", b"1")]),
        (b"kv", b"", [("a", b"1")]),
        (b"k", b"v", [("a", None)]),
        (b"k", b"v", [("b", b"1")]),
        (b"k", b"v", [("a", b"1"), ("a", b"1")]),
        (b"k", b"v", []),
    ]
    assert len({digest(key, value, headers) for key, value, headers in variants}) == len(variants)
