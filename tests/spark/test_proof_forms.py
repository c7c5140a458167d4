"""Halves, op markers and positions are read by an audit as the relay reads them: the test vectors hold for both."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import Row
from pyspark.sql import functions as f

from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import Headers, parse_half
from outbox.protocol.op import OpSource, parse_op
from outbox.protocol.positions import Positions
from spark_jobs.auditing.job import searches
from spark_jobs.records.database_rows import lists, positions_of
from spark_jobs.records.topics import half_evidence, op_evidence
from tests.support.proving import BEGIN, Record, frame
from tests.support.spark import session

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs/vectors.json").read_text())

ID = "0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
TOPIC_ID = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
TARGET = ("outbox-target", b"orders:-1")
TRANSACTION = ("outbox-transaction", f"1;{ID}/0".encode())
SERVICE = ("outbox-service", b"shop;row")
GOOD: Headers = [TARGET, TRANSACTION, SERVICE]


def options(*values: bytes | None) -> Headers:
    return [*GOOD, *(("outbox-options", value) for value in values)]


def changed(name: str, value: bytes | None) -> Headers:
    return [(header, value if header == name else text) for header, text in GOOD]


HEADERS: list[Headers] = [
    GOOD,
    [],
    GOOD[:2],
    [*GOOD, SERVICE],
    [*GOOD, ("outbox-unknown", b"x"), ("outbox-unknown", b"y")],
    *(changed("outbox-target", value) for value in (None, b"orders", b"orders:-2", b"orders:01", b"orders:2147483648")),
    *(changed("outbox-target", value) for value in (b"..:0", b".:0", b"a..:0", b"\xff:0", b"a b:0", b"a:0\n")),
    *(changed("outbox-transaction", f"{text}".encode()) for text in (f"1;{ID}", f"1;{ID}/01", f"1;{ID}/10000", "")),
    *(changed("outbox-transaction", f"1;{text}/9999".encode()) for text in (ID, ID.upper(), ID[1:])),
    *(
        changed("outbox-service", value)
        for value in (b"shop", b"shop;", b"shop;rows", b";row", b"a" * 200 + b";listener")
    ),
    options(b""),
    options(None),
    options(b"", b""),
    *(options(text.encode()) for text in ("timestamp=", "timestamp=01", "timestamp=1;timestamp=1", "timestamp=-1")),
    *(options(text.encode()) for text in ("unordered", "unordered=", "unordered;ordering=a", "ordering", "ordering=")),
    *(
        options(text.encode())
        for text in ("ordering=%ff", "ordering=%FF%00a~", "ordering=a b", "later=1", ";", "immunity=5;")
    ),
    *(options(f"timestamp=5;incarnation={text}".encode()) for text in (ID, "x")),
]


def read(records: list[Record]) -> list[Row]:
    return half_evidence(frame(records), {}).orderBy("message.offset").collect()


def half(offset: int, headers: Headers, key: bytes | None = b"k", value: bytes | None = b"v") -> Record:
    return Record("outbox.half", 0, offset, key, value, [*headers], BEGIN)


def told(row: Row) -> tuple[Any, ...] | None:
    """What the audit reads of a half; None if it is malformed."""
    one = row.message
    if one.truth is None:
        return None
    ordering = None if one.ordering is None else bytes(one.ordering)
    return (row.transaction_id, one.position, one.topic, one.target, one.service, one.truth, ordering, one.incarnation)


def parsed(headers: Headers, key: bytes | None) -> tuple[Any, ...] | None:
    try:
        control = parse_half(headers)
    except ProtocolError:
        return None
    place = (control.transaction_id, control.position, control.topic, control.partition)
    return *place, control.service, str(control.truth), control.ordering_key(key), control.options.incarnation


def test_halves_are_read_as_the_relay_reads_them() -> None:
    for headers, row in zip(HEADERS, read([half(*numbered) for numbered in enumerate(HEADERS)]), strict=True):
        assert told(row) == parsed(headers, b"k"), headers


def test_the_vectors_of_halves_hold() -> None:
    vectors = list(VECTORS["half"].values())
    made = [_record(offset, vector) for offset, vector in enumerate(vectors)]
    for vector, row in zip(vectors, read(made), strict=True):
        fields = vector["fields"]
        assert told(row) == (
            *(fields[name] for name in ("transaction", "position", "topic", "partition", "service", "truth")),
            _bytes(vector["ordering_key"]),
            fields["incarnation"],
        )
        if fields["timestamp"] is not None:
            assert row.message.sent.timestamp() * 1000 == fields["timestamp"]


def test_content_is_what_the_user_gave() -> None:
    same = half(0, [("a", b"1"), *GOOD, ("b", None)])
    others = [
        replace(same, headers=[("a", b"1"), ("b", None), ("outbox-id", b"x")]),
        replace(same, headers=[("b", None), *GOOD, ("a", b"1")]),
        replace(same, headers=[("a", b"1"), *GOOD, ("b", b"")]),
        replace(same, headers=[("a", b"1"), *GOOD]),
        replace(same, key=None),
        replace(same, key=b"v", value=b"k"),
        replace(same, key=None, value=b"kv"),
        replace(same, value=None),
        replace(same, value=b""),
    ]
    first, second, *rest = (row.message.content for row in read([same, *_numbered(others)]))
    assert first == second
    assert len({first, *rest}) == 1 + len(rest)


def test_ops_are_read_as_the_relay_reads_them() -> None:
    vectors = [vector["value"].encode() for vector in VECTORS["op"].values()]
    good = f"C {ID} {TOPIC_ID} 3 0 100 100 0"
    texts = [
        "",
        f"{good}\n",
        f"{good}\nX",
        good.replace("C ", "X "),
        good.replace(" 3 ", " 03 "),
        f"{good} why\tnot",
        good[:-2],
    ]
    values = [*vectors, *(text.encode() for text in texts), good.encode() + b" \xff"]
    headers = [("outbox-op", b"1;producer")]
    records = [Record("outbox.op", 3, at, None, value, headers, BEGIN) for at, value in enumerate(values)]
    wrong = [Record("outbox.op", 3, 99, None, good.encode(), [("outbox-op", b"1;nobody")], BEGIN)]
    rows = op_evidence(frame([*records, *wrong]), TOPIC_ID, {3: (0, 2**62)}).collect()
    found = sorted((row.op.offset, row.op.kind, row.transaction_id, row.op.positions, row.op.first) for row in rows)
    assert found == sorted(entry for at, value in enumerate(values) for entry in _entries(at, value, headers))


def test_ops_of_a_source_of_another_topic_count_for_nothing() -> None:
    value = f"C {ID} {TOPIC_ID} 3 0 5 5 0".encode()
    records = [
        Record(f"outbox.{topic}", 3, 0, None, value, [("outbox-op", f"1;{source}".encode())], BEGIN)
        for topic in ("op", "verdict")
        for source in OpSource
    ]
    rows = op_evidence(frame(records), TOPIC_ID, {3: (0, 10)}).collect()
    assert sorted(row.op.source for row in rows) == sorted(OpSource)


def test_ops_of_another_place_are_foreign() -> None:
    lines = [
        f"C {ID} {topic} {partition} 0 {first} {first} 0"
        for topic, partition, first in ((TOPIC_ID, 3, 5), (TOPIC_ID, 2, 5), (ID, 3, 5), (TOPIC_ID, 3, 50))
    ]
    record = Record("outbox.op", 3, 0, None, "\n".join(lines).encode(), [("outbox-op", b"1;producer")], BEGIN)
    rows = op_evidence(frame([record]), TOPIC_ID, {2: (0, 10), 3: (0, 10)}).collect()
    assert [(row.op.partition, row.op.first, row.op.contained) for row in rows] == [(3, 5, True)]


def test_positions_are_those_of_the_protocol() -> None:
    texts = list(VECTORS["positions"])
    rows = (
        session()
        .createDataFrame([(text,) for text in texts], "text string")
        .select("text", positions_of(f.col("text")).alias("all"), lists(f.col("text"), f.lit(2)).alias("two"))
        .collect()
    )
    for row in rows:
        expected = list(Positions.parse(row.text))
        assert row["all"] == expected
        assert row.two is (2 in expected)


def test_a_topic_is_searched_from_the_windows_start_or_from_an_older_timestamp() -> None:
    at = int(BEGIN.timestamp() * 1000)
    targets = {"due": at + 86_400_000, "old": at - 500, "both": at + 1}
    halves = [
        half(offset, [*options(f"timestamp={sent}".encode())[1:], ("outbox-target", f"{topic}:-1".encode())])
        for offset, (topic, sent) in enumerate(targets.items())
    ]
    found = searches(half_evidence(frame(halves), {}), ["both", "other"], at - 100)
    assert found == {"due": at - 100, "old": at - 500, "both": at - 100, "other": at - 100}


def _numbered(records: list[Record]) -> list[Record]:
    return [replace(record, offset=number) for number, record in enumerate(records, 1)]


def _entries(at: int, value: bytes, headers: Headers) -> list[tuple[Any, ...]]:
    try:
        _, entries = parse_op(value, headers)
    except ProtocolError:
        return []
    return [
        (at, str(one.kind), one.transaction_id, str(one.positions), one.first_offset)
        for one in entries
        if (one.topic_id, one.partition) == (TOPIC_ID, 3)
    ]


def _record(offset: int, vector: dict[str, Any]) -> Record:
    headers = [(name, value.encode()) for name, value in vector["control_headers"]]
    own = [(name, _bytes(value)) for name, value in vector["user_headers"]]
    return half(offset, [*headers, *own], _bytes(vector["key"]), _bytes(vector["value"]))


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
