"""The reconciler of the demo finds what is wrong."""

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


def _changed(**changes: object) -> list[Seen]:
    return [*_records()[:10], replace(_records()[10], **changes)]  # type: ignore[arg-type]  # each case names its fields


def _swapped() -> list[Seen]:
    records = _records()
    records[3], records[4] = replace(records[3], offset=8), replace(records[4], offset=6)
    return records


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (_records(), {}),
        ([record for record in _records() if record.id != "tx4/0"], {"lost": ["tx4/0"]}),
        ([*_records(), replace(_records()[10], offset=7)], {"doubled": ["tx10/0"]}),
        ([*_records(), Seen("never/0", TOPIC, 1, 9, None, "digest", None)], {"phantom": ["never/0"]}),
        ([*_records(), Seen("", TOPIC, 2, 0, None, "digest", None)], {"phantom": [""]}),
        (_swapped(), {"out_of_order": ["tx3/0"]}),
        (_changed(digest="other"), {"lost": ["tx10/0"], "phantom": ["tx10/0"]}),
        (_changed(topic="flights.delays"), {"lost": ["tx10/0"], "phantom": ["tx10/0"]}),
    ],
    ids=["clean", "lost", "doubled", "phantom", "without id", "swapped", "content", "topic"],
)
def test_what_is_wrong_is_found_and_nothing_else(records: list[Seen], expected: dict[str, list[str]]) -> None:
    result = reconcile(_told(), records)
    assert result.clean is not bool(expected)
    for kind in ("lost", "doubled", "phantom", "out_of_order"):
        assert getattr(result, kind) == expected.get(kind, [])


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
