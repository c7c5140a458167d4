"""`format("outbox")`: records as rows, filters as bounds, options."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from outbox._kafka.range_reader import Span
from outbox.errors import ConfigurationError
from outbox.protocol.discard import DiscardReason, Manifest, copy_key, manifest_key, message_key
from outbox.protocol.envelope import Envelope
from outbox.protocol.half import HalfControl, HalfOptions, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from spark_jobs.sql.decoding import Stored, decode, time_of
from spark_jobs.sql.options import Options
from spark_jobs.sql.pushdown import Bounds, narrowed
from spark_jobs.sql.schema import OutboxTable
from spark_jobs.sql.topic_reader import ReadTask, missing
from tests.support.proving import INCARNATION, TOPIC_ID

ID = "0192f3a4-5b6c-7d8e-9f00-000000000001"
NOON = 1_795_000_000_000
HALF = HalfControl("orders", -1, ID, 3, "shop", Truth.ROW, HalfOptions(5, 700, (b"o",), INCARNATION))


def rows(what: OutboxTable, **fields: Any) -> list[dict[str, Any]]:
    record = Stored(**{"partition": 1, "offset": 42, "timestamp": NOON, "key": b"k", "value": b"v", **fields})
    found = list(decode(what, record))
    for row in found:
        assert (row["partition"], row["offset"], row["timestamp"]) == (1, 42, time_of(NOON))
        assert row.keys() <= set(what.names)
    return found


@pytest.mark.parametrize("what", [OutboxTable.HALVES, OutboxTable.PENDING])
def test_a_half_is_a_row(what: OutboxTable) -> None:
    headers = (*HALF.encode(), ("mine", None))
    [row] = rows(what, headers=headers)
    assert (row["key"], row["value"], row["headers"]) == (b"k", b"v", headers)
    assert (row["transaction_id"], row["position"], row["message_id"]) == (ID, 3, f"{ID}/3")
    assert (row["producer_group"], row["truth"], row["topic"], row["topic_partition"]) == (
        "shop",
        "row",
        "orders",
        None,
    )
    assert (row["ordering_key"], row["message_timestamp"], row["immunity_ms"]) == (b"o", time_of(5), 700)
    assert row["incarnation"] == INCARNATION
    assert "problem" not in row


def test_an_op_record_is_a_row_for_each_of_its_entries() -> None:
    entries = [
        OpEntry(OpKind.COMMIT, ID, TOPIC_ID, 1, Positions.first(2), 7, 8),
        OpEntry(OpKind.UNKNOWN, ID, TOPIC_ID, 1, Positions(()), -1, -1, 4, "busy"),
    ]
    value, headers = encode_op(entries, OpSource.LISTENER)
    first, second = rows(OutboxTable.OPS, key=None, value=value, headers=tuple(headers))
    assert (first["entry"], first["kind"], first["positions"], first["first_offset"], first["last_offset"]) == (
        0,
        "COMMIT",
        "0-1",
        7,
        8,
    )
    assert (second["entry"], second["kind"], second["checks"], second["reason"]) == (1, "UNKNOWN", 4, "busy")
    assert {row["source"] for row in (first, second)} == {"listener"}


def test_discard_records_are_rows_by_what_they_are() -> None:
    offsets = ((3, 42), (3, 44))
    manifest = Manifest(
        ID,
        "shop",
        Truth.ROW,
        TOPIC_ID,
        1,
        DiscardReason.TOO_LARGE,
        "why",
        OpKind.COMMIT,
        Positions.of([3]),
        offsets,
        NOON,
    )
    [row] = rows(OutboxTable.DISCARDS, key=manifest_key(ID), value=manifest.encode())
    assert (row["record"], row["removed"], row["transaction_id"]) == ("manifest", False, ID)
    assert (row["reason"], row["decision"], row["half_offsets"], row["positions"]) == (
        "TOO_LARGE",
        "COMMIT",
        [42, 44],
        "3",
    )
    envelope = Envelope(b"k", None, tuple(HALF.encode()), NOON, 42).encode()
    [row] = rows(OutboxTable.DISCARDS, key=message_key(ID, 3), value=envelope)
    assert (row["record"], row["position"], row["half_offset"], row["topic"]) == ("message", 3, 42, "orders")
    assert (row["key"], row["value"], row["half_timestamp"]) == (b"k", None, time_of(NOON))
    [row] = rows(OutboxTable.DISCARDS, key=copy_key(ID, 3, 44), value=None)
    assert (row["record"], row["removed"], row["half_offset"]) == ("copy", True, 44)


@pytest.mark.parametrize(
    ("what", "fields", "problem"),
    [
        (OutboxTable.HALVES, {}, "header outbox-transaction is missing"),
        (OutboxTable.HALVES, {"headers": (("outbox-transaction", b"2;x"),)}, "of format 2"),
        (OutboxTable.PENDING, {"problem": "a header's name is not UTF-8"}, "is not UTF-8"),
        (OutboxTable.OPS, {}, "header outbox-op is missing"),
        (OutboxTable.OPS, {"headers": (("outbox-op", b"1;producer"),), "value": None}, "has no entries"),
        (OutboxTable.OPS, {"headers": (("outbox-op", b"1;producer"),), "value": b"\xff"}, "not UTF-8"),
        (OutboxTable.DISCARDS, {"key": None}, "no key of a discard record"),
        (OutboxTable.DISCARDS, {"key": b"x/manifest"}, "x"),
        (OutboxTable.DISCARDS, {"key": f"{ID}/99999999999".encode()}, "position in a key is not a number from 0"),
        (OutboxTable.DISCARDS, {"key": f"{ID}/{9:0>5000}".encode()}, "position in a key is not a number from 0"),
        (OutboxTable.DISCARDS, {"key": f"{ID}/1/{2**63}".encode()}, "half offset in a key is not a number from 0"),
        (OutboxTable.DISCARDS, {"key": manifest_key(ID)}, "a manifest is not JSON"),
        (OutboxTable.DISCARDS, {"key": message_key(ID, 0)}, "an envelope is not JSON"),
        (
            OutboxTable.DISCARDS,
            {"key": message_key(ID, 0), "value": Envelope(None, None, (), 0, 0).encode()},
            "is missing",
        ),
    ],
)
def test_what_cannot_be_decoded_is_a_row_with_the_reason(
    what: OutboxTable, fields: dict[str, Any], problem: str
) -> None:
    [row] = rows(what, **fields)
    assert problem in row["problem"]


def test_a_time_beyond_the_calendar_is_null() -> None:
    assert time_of(-1) is None
    assert time_of(10**18) is None
    assert time_of(1) == datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC)


def at(ms: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


ZERO = 1_767_225_600_000


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        ([], Bounds()),
        ([EqualTo(("partition",), 1)], Bounds(partitions=frozenset([1]))),
        ([In(("partition",), (1, 2)), EqualNullSafe(("partition",), 2)], Bounds(partitions=frozenset([2]))),
        ([EqualTo(("offset",), 5)], Bounds(first=5, last=5)),
        ([GreaterThan(("offset",), 5), LessThan(("offset",), 9)], Bounds(first=6, last=8)),
        ([GreaterThanOrEqual(("offset",), 5), GreaterThan(("offset",), 2)], Bounds(first=5)),
        ([In(("offset",), (9, 3)), LessThanOrEqual(("offset",), 7)], Bounds(first=3, last=7)),
        ([GreaterThan(("timestamp",), at(0.5)), LessThan(("timestamp",), at(7))], Bounds(since=ZERO, until=ZERO + 7)),
        ([EqualTo(("timestamp",), at(3).replace(tzinfo=None))], Bounds(since=ZERO + 3, until=ZERO + 3)),
        ([EqualTo(("transaction_id",), ID)], Bounds(transactions=frozenset([ID]))),
        ([EqualTo(("topic",), "orders"), StringStartsWith(("transaction_id",), "01")], Bounds()),
        ([EqualTo(("headers", "partition"), 1)], Bounds()),
    ],
)
def test_filters_bound_what_is_read(filters: list[Filter], bounds: Bounds) -> None:
    assert narrowed(filters) == bounds


def test_bounds_let_through_what_can_be_wanted() -> None:
    assert Bounds().wants(None)
    assert not Bounds(transactions=frozenset([ID])).wants(None)
    assert Bounds(transactions=frozenset([ID])).wants(ID)
    assert Bounds(partitions=frozenset([1])).wants_partition(1)
    assert not Bounds(partitions=frozenset([1])).wants_partition(0)


def test_only_what_is_unsettled_counts() -> None:
    share = ReadTask(Span("t", 0, 0, 20), (range(2, 4), range(7, 8), range(15, 20)))
    assert [offset for offset in range(21) if share.has(offset)] == [2, 3, 7, 15, 16, 17, 18, 19]
    assert not ReadTask(Span("t", 0, 0, 20), ()).has(3)
    assert ReadTask(Span("t", 0, 0, 20)).has(3)


def test_what_a_stream_cannot_read_is_named() -> None:
    there = [Span("t", 0, 5, 10)]
    assert missing([Span("t", 0, 5, 10)], there) is None
    assert "t/0 was to be read from 3 to 9, and Kafka has 5..9" in str(missing([Span("t", 0, 3, 10)], there))
    assert "and Kafka has 5..9" in str(missing([Span("t", 0, 6, 11)], there))
    assert "and Kafka has nothing" in str(missing([Span("t", 1, 0, 1)], there))


def options(**given: str) -> Options:
    named = {name.replace("_", "."): value for name, value in given.items()}
    return Options.of({"kafka.bootstrap.servers": "k:1", "what": "halves", **named})


def test_options_say_what_is_read_and_how() -> None:
    made = options(channel="shop", what="ops", maxoffsetspertrigger="5", startingoffsets="latest", kafka_group="x")
    assert (made.topic, made.most, made.latest) == ("shop.op", 5, True)
    assert made.kafka == {"log_level": "0", "bootstrap.servers": "k:1", "group": "x"}
    assert options(what="", path="discards").topic == "outbox.discard"
    assert options(what="pending").topic == "outbox.half"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"what": "reals"}, "Option what is 'reals'. Use one of halves, ops, verdicts, discards, pending"),
        ({"what": ""}, "Option what is ''. Use one of"),
        ({"kafka_bootstrap_servers": ""}, "lacks the option kafka.bootstrap.servers"),
        ({"chanel": "shop"}, "has no option chanel"),
        ({"channel": "Shop"}, "channel name 'Shop' is not allowed"),
        ({"startingoffsets": "5"}, "is '5'. Use earliest or latest"),
        ({"maxoffsetspertrigger": "0"}, "is '0'. Give a number that is at least 1"),
        ({"clockskewms": "x"}, "is 'x'. Give a number that is at least 0"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        options(**given)
