"""Rows of a foreign table as transactions of the relay (R59)."""

import uuid
from collections.abc import Sequence

import pytest

from outbox._rules.foreign_layout import Layout, make_layout
from outbox.protocol.discard import DiscardReason
from outbox.protocol.names import Channel
from outbox.protocol.record import Record
from relay.delivery.rules.preflight import RealTopic
from relay.delivery.rules.topic_gate import Gate, GatePolicy
from relay.table.admission import Admission
from relay.table.foreign.foreign_rows import MAX_BYTES, MAX_ID_BYTES, ForeignRow, RowReader, deliverable, parsed_headers
from relay.table.row_transactions import transactions
from relay.table.rows import Row, records, transactions_of

INCARNATION = "019aaa3c-6d1c-7aaa-8aaa-0123456789ab"
MS = 1_700_000_000_123
COLUMNS = {"topic": "topic", "key": "key", "value": "body", "headers": "extra", "service": "owner"}
MAPPING = make_layout("mapping", COLUMNS, "", "", "")
DEBEZIUM = make_layout("debezium", {}, "", "", "type:header:eventType")
UUIDS = [str(uuid.UUID(int=number)) for number in range(9, 0, -1)]


def row(id_: str = "7", xmin: int = 1, **more: object) -> ForeignRow:
    made = ForeignRow(xmin, False, id_, 301, MS, b"orders", b"g", b"k", b"v", None, None, None, ())
    columns = {name: _stored(value) if name != "id" else value for name, value in more.items()}
    return made._replace(**columns)  # type: ignore[arg-type]


def _stored(value: object) -> object:
    if isinstance(value, list | tuple):
        return [*map(_stored, value)]
    return value.encode() if isinstance(value, str) else value


def read(rows: Sequence[ForeignRow], layout: Layout = MAPPING, id_type: str = "int8") -> list[Row]:
    return list(RowReader(layout, "shop", {layout.columns["id"]: id_type}, INCARNATION).rows(rows))


def written(rows: Sequence[Row]) -> list[Record]:
    return list(records(rows, transactions_of(rows), "shop"))


def error(found: ForeignRow, layout: Layout = MAPPING) -> str:
    return transactions(read([found], layout))[0].messages[0].error


def test_rows_of_one_local_transaction_are_one_transaction() -> None:
    found = transactions(read([row("5", 1), row("9", 2), row("7", 1)]))
    assert [list(map(str, one.ids())) for one in found] == [["5", "7"], ["9"]]


def test_order_is_that_of_the_rows_whatever_their_ids_are() -> None:
    rows = [row(id_, number % 2, value=id_.encode()) for number, id_ in enumerate(UUIDS)]
    assert [record.value for record in written(read(rows, id_type="uuid"))] == [id_.encode() for id_ in UUIDS]


def test_message_id_is_that_of_the_row_alone() -> None:
    """It is the same if the row comes again in another local transaction, behind other rows."""
    first = written(read([row("5"), row("6")]))
    again = written(read([row("6", 3)]))
    assert dict(first[1].headers)["outbox-id"] == dict(again[0].headers)["outbox-id"]
    assert {dict(record.headers)["outbox-count"] for record in first} == {b"1"}, "each id is one transaction"
    assert dict(first[0].headers)["outbox-id"] == f"{uuid.uuid5(uuid.UUID(INCARNATION), '5')}/0".encode()
    assert dict(written(read([row(UUIDS[0])], id_type="uuid"))[0].headers)["outbox-id"] == f"{UUIDS[0]}/0".encode()


def test_record_names_source_and_row() -> None:
    (record,) = written(read([row("a/b")], id_type="text"))
    assert dict(record.headers)["outbox-origin"] == b"shop/a/b"
    assert dict(record.headers)["outbox-service"] == b"g"
    assert record.timestamp == MS


def test_debezium_row_has_topic_key_and_headers_of_the_event_router() -> None:
    (record,) = written(read([row(UUIDS[0], placed=["OrderMade"])], DEBEZIUM, "uuid"))
    assert (record.topic, record.key, record.value, record.partition) == ("outbox.event.orders", b"k", b"v", -1)
    assert record.headers[:2] == [("id", UUIDS[0].encode()), ("eventType", b"OrderMade")]
    assert dict(record.headers)["outbox-service"] == b"shop"


def test_mapped_row_has_what_its_columns_have() -> None:
    extra = '{"text": "ä", "none": null, "number": 1.5, "list": [1, "ü"]}'
    (record,) = written(read([row(headers=extra, partition=2, timestamp=MS + 1, value=None, key=None)]))
    mapped = [("text", "ä".encode()), ("none", None), ("number", b"1.5"), ("list", '[1, "ü"]'.encode())]
    assert record.headers[:4] == mapped
    assert (record.partition, record.timestamp, record.key, record.value) == (2, MS + 1, None, None)


def test_headers_have_the_text_that_the_row_has() -> None:
    """A number of Python has fewer digits: what Postgres writes goes out, as Debezium does it."""
    numbers = {"long": "0.1000000000000000000001", "large": "1e400", "whole": "1" * 5_000, "zero": "-0.00"}
    nested = '{"b" : [1.50,  1e400, "}\\\\"]}'
    text = ", ".join(f'"{name}": {number}' for name, number in {**numbers, "nested": nested}.items())
    expected = [*((name, number.encode()) for name, number in numbers.items()), ("nested", nested.encode())]
    assert parsed_headers(f' {{ {text} , "long":true}} ') == [*expected, ("long", b"true")]
    assert parsed_headers(" { } ") == []


def test_row_too_large_stays_with_its_local_transaction() -> None:
    rows = [row("1", 1), row("2", 2, size=MAX_BYTES + 1, value=None), row("3", 1), row("4", 2)]
    found, left = deliverable(rows)
    assert [one.id for one in found] == ["1", "3"]
    assert [one.id for one in left] == ["2", "4"]
    found, left = deliverable([row("5", 2), row("6", 3)], {2})
    assert [one.id for one in found] == ["6"]
    assert [one.id for one in left] == ["5"]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (row(topic=None), "column topic, which chooses the topic, is NULL"),
        (row(topic="a b"), "topic 'a b' is not a topic name"),
        (row(service=None), "service '' is not allowed"),
        (row(partition=-2), "partition -2 is negative"),
        (row(timestamp=-1), "timestamp -1 is not in ms since 1970"),
        (row(timestamp=0), "timestamp 0 is not in ms since 1970, from 1 to"),
        (row(headers='{"a": NaN}'), "its headers cannot be read"),
        (row(headers="[]"), "its headers are [], not a JSON object"),
        (row(headers='{"a": "\\ud800"}'), "its headers cannot be read"),
        (row(headers='{"\\ud800": 1}'), "its headers cannot be read"),
        (row(headers='{"outbox-id": "x"}'), "header outbox-id is reserved"),
        (row(headers='{"outbox-id\\u0000": "x"}'), "the name of a header has a NUL"),
        (row(headers=f'{{"a": {"[" * 100_000}{"]" * 100_000}}}'), "its headers cannot be read"),
        (row("x" * (MAX_ID_BYTES + 1)), "its id has 201 bytes, more than 200"),
    ],
)
def test_broken_row_is_discarded_with_its_transaction_and_no_other(found: ForeignRow, why: str) -> None:
    assert why in error(found)
    gate = Gate(GatePolicy(), Channel("outbox"), "shop")
    gate.turn(0)
    gate.update({"orders"}, {"orders": RealTopic(3, 1_000_000)}, ())
    rows = [row("a", 2), found, row("b", found.xmin), row("c", 3)]
    admitted = Admission(gate, Channel("outbox")).take(read(rows, id_type="text"), MS)
    apart = [] if found.service else ["b"]  # rows of another service are another transaction
    assert [str(one.id) for one in admitted.rows] == ["a", *apart, "c"]
    refused = [str(id_) for one, _ in admitted.refused for id_ in one.ids()]
    assert refused == [found.id, *(["b"] if found.service else [])]
    assert {finding.reason for _, finding in admitted.refused} == {DiscardReason.MALFORMED}
