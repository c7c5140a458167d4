"""The table's columns of Kafka records: what the relay's headers say, and what becomes of headers that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as f

from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import HalfControl, Truth, count_header, real_headers
from outbox.protocol.identifiers import table_transaction_id
from outbox.protocol.names import COUNT_HEADER, MESSAGE_ID_HEADER, ORIGIN_HEADER, SERVICE_HEADER, check_service
from relay.table.rows import EPOCH_US, transactions_of
from relay.table.rows import Row as TableRow
from relay.table.rows import records as table_records
from spark_jobs.columns import landed_columns
from tests.support.spark import Record, records

TRANSACTION = "0192f3a4-5b6c-7d8e-9f00-112233445566"
MESSAGE_ID = f"{TRANSACTION}/12".encode()

Headers = list[tuple[str, bytes | None]]


def land(*given: Record) -> list[Row]:
    return landed_columns(records(*given)).orderBy("offset").collect()


def land_headers(*headers: Headers | None) -> list[Row]:
    return land(*(Record(offset, each) for offset, each in enumerate(headers)))


def land_header(name: str, values: Sequence[bytes]) -> list[Row]:
    return land(*(Record(offset, [(name, value)]) for offset, value in enumerate(values)))


def test_headers_of_the_relay_become_columns() -> None:
    control = HalfControl("orders", -1, TRANSACTION, 7, "shop.orders", Truth.ROW)
    made = [*real_headers(control, [("trace", b"x")], 3, 4_567_890_123), count_header(12)]
    [row] = land_headers([(name, value.encode() if isinstance(value, str) else value) for name, value in made])
    assert row.message_id == f"{TRANSACTION}/7"
    assert row.transaction_id == TRANSACTION
    assert row.position == 7
    assert row.service == "shop.orders"
    assert (row.origin_partition, row.origin_offset, row.message_count) == (3, 4_567_890_123, 12)
    assert (row.headers[0].key, bytes(row.headers[0].value)) == ("trace", b"x")


def test_a_record_of_table_mode_has_the_id_of_its_row_and_no_position() -> None:
    started = 1_795_000_000_123_456 - EPOCH_US
    row = TableRow(7, 10_000_000_000, started, "shop", "orders", -1, None, b"k", b"v", ["trace"], [b"x"])
    [made] = table_records([row], transactions_of([row]), "shop-db")
    [landed] = land_headers(
        [(name, value.encode() if isinstance(value, str) else value) for name, value in made.headers]
    )
    assert landed.message_id == f"{table_transaction_id(7, 1_795_000_000_123_456)}/10000000000"
    assert landed.transaction_id == table_transaction_id(7, 1_795_000_000_123_456)
    assert (landed.position, landed.service) == (None, "shop")
    assert (landed.origin_partition, landed.origin_offset) == (None, 10_000_000_000)
    assert (landed.message_count, landed.problem) == (1, None)
    assert (landed.headers[2].key, bytes(landed.headers[-1].value)) == (SERVICE_HEADER, b"1")


@pytest.mark.parametrize("id_", ["7", "a/b", "ä\n", "x" * 200])
def test_a_record_of_a_foreign_table_has_the_id_of_its_row_in_its_header_only(id_: str) -> None:
    [row] = land_headers([*GOOD[:2], (ORIGIN_HEADER, f"foreign:shop-db/{id_}".encode())])
    assert (row.message_id, row.transaction_id, row.service) == (MESSAGE_ID.decode(), TRANSACTION, "shop")
    assert (row.position, row.origin_partition, row.origin_offset) == (None, None, None)
    assert row.problem is None


def test_the_record_itself_is_kept() -> None:
    [row] = land(Record(5, [("a", None), ("a", b"\xff")], "orders", 2, b"\x00\xff", b"v"))
    assert (row.topic, row.partition, row.offset, row.timestamp_type) == ("orders", 2, 5, 0)
    assert (bytes(row.key), bytes(row.value)) == (b"\x00\xff", b"v")
    assert [(header.key, header.value) for header in row.headers] == [("a", None), ("a", bytearray(b"\xff"))]


GOOD: Headers = [(MESSAGE_ID_HEADER, MESSAGE_ID), (SERVICE_HEADER, b"shop"), (ORIGIN_HEADER, b"1/2")]


def test_what_is_wrong_with_headers_is_told() -> None:
    given: dict[str, tuple[Headers | None, str | None]] = {
        "none at all": (None, None),
        "no outbox": ([("trace", b"x")], None),
        "all three": (GOOD, None),
        "id": ([(MESSAGE_ID_HEADER, b"\xff"), *GOOD[1:]], "MALFORMED_ID"),
        "service": ([GOOD[0], (SERVICE_HEADER, b"a b"), GOOD[2]], "MALFORMED_SERVICE"),
        "origin": ([*GOOD[:2], (ORIGIN_HEADER, b"1")], "MALFORMED_ORIGIN"),
        "foreign source": ([*GOOD[:2], (ORIGIN_HEADER, b"foreign:Shop/1")], "MALFORMED_ORIGIN"),
        "foreign row": ([*GOOD[:2], (ORIGIN_HEADER, b"foreign:shop/")], "MALFORMED_ORIGIN"),
        "no id": (GOOD[1:], "INCOMPLETE"),
        "no origin": (GOOD[:2], "INCOMPLETE"),
        "id without value": ([(MESSAGE_ID_HEADER, None), *GOOD[1:]], "INCOMPLETE"),
    }
    rows = land_headers(*(headers for headers, _ in given.values()))
    found = {name: row.problem for name, row in zip(given, rows, strict=True)}
    assert found == {name: problem for name, (_, problem) in given.items()}


def test_a_time_beyond_the_calendar_of_most_readers_is_on_its_last_day() -> None:
    far = records(Record(0)).withColumn("timestamp", f.timestamp_millis(f.lit(999_999_999_999_999)))
    [row] = landed_columns(far).select(f.col("day").cast("string"), f.year("timestamp").alias("year")).collect()
    assert (row.day, row.year) == ("9999-12-31", 33_658)


def test_tombstones_and_null_keys_stay_null() -> None:
    [row] = land(Record(0, [], key=None, value=None))
    assert row.key is None
    assert row.value is None


def test_the_day_is_that_of_utc() -> None:
    late = datetime(2026, 11, 20, 23, 59, 59, 999_000, tzinfo=UTC)
    early = datetime(2026, 11, 21, tzinfo=UTC)
    rows = land(Record(0, timestamp=late), Record(1, timestamp=early))
    assert [row.day for row in rows] == [date(2026, 11, 20), date(2026, 11, 21)]


@pytest.mark.parametrize("headers", [None, [], [("other", b"x")], [(MESSAGE_ID_HEADER, None)]])
def test_missing_headers_give_null(headers: Headers | None) -> None:
    assert_unknown(land_headers(headers)[0])


MALFORMED_IDS = [
    b"",
    b"/1",
    TRANSACTION.encode(),
    f"{TRANSACTION}/".encode(),
    f"{TRANSACTION}/-1".encode(),
    f"{TRANSACTION}/12345".encode(),
    f"{TRANSACTION}/1\n".encode(),
    f" {TRANSACTION}/1".encode(),
    f"{TRANSACTION.upper()}/1".encode(),
    f"{TRANSACTION}/\u0661".encode(),  # a digit, but no ASCII one
    b"\xff" + MESSAGE_ID,
]


def test_malformed_message_ids_give_null() -> None:
    for row in land_header(MESSAGE_ID_HEADER, MALFORMED_IDS):
        assert_unknown(row)


MALFORMED_ORIGINS = [
    *(b"", b"/", b"1", b"1/", b"/1", b"-1/5", b"1/+5", b"1/2/3", b" 1/2", b"1/2\n", b"shop"),
    *(b"shop/", b"Shop/1", b"shop/1/2", b"a" * 64 + b"/1", b"9" * 30 + b"/1", b"\xff/1"),
]


def test_malformed_origins_give_null() -> None:
    for row in land_header(ORIGIN_HEADER, MALFORMED_ORIGINS):
        assert_unknown(row)


def test_the_largest_numbers_fit() -> None:
    large = "9" * 18
    [of_table] = land_headers(
        [(MESSAGE_ID_HEADER, f"{TRANSACTION}/{large}".encode()), (ORIGIN_HEADER, f"{'a' * 63}/{large}".encode())]
    )
    assert (of_table.message_id, of_table.origin_offset) == (f"{TRANSACTION}/{large}", int(large))
    [row] = land_headers(
        [(MESSAGE_ID_HEADER, f"{TRANSACTION}/9999".encode()), (ORIGIN_HEADER, b"999999999/" + b"9" * 18)]
    )
    assert row.position == 9_999
    assert (row.origin_partition, row.origin_offset) == (999_999_999, 999_999_999_999_999_999)


def test_malformed_counts_give_null() -> None:
    values = [b"", b"0", b"01", b"-1", b"1 ", b"1\n", b"x", b"1234567890", b"\xff"]
    assert {row.message_count for row in land_header(COUNT_HEADER, values)} == {None}


@pytest.mark.parametrize(
    "service", ["orders", "shop.orders-2_x", "a" * 200, "", "a" * 201, "a b", "a\n", "gr\u00fcn", "a;row"]
)
def test_a_service_is_what_the_protocol_allows(service: str) -> None:
    [row] = land_headers([(SERVICE_HEADER, service.encode())])
    assert row.service == allowed(service)


def test_of_repeated_headers_the_last_one_counts() -> None:
    first, second = f"{TRANSACTION}/1".encode(), f"{TRANSACTION}/2".encode()
    [row] = land_headers([(MESSAGE_ID_HEADER, first), ("a", b""), (MESSAGE_ID_HEADER, second), ("a", b"")])
    assert row.message_id == second.decode()


def test_undecodable_user_headers_do_no_harm() -> None:
    [row] = land_headers([("a", b"\xff\xfe"), (MESSAGE_ID_HEADER, MESSAGE_ID), ("\u00e4", None)])
    assert row.message_id == MESSAGE_ID.decode()


def test_one_wrong_header_does_not_spoil_the_others() -> None:
    [row] = land_headers([(MESSAGE_ID_HEADER, MESSAGE_ID), (SERVICE_HEADER, b"\xff"), (ORIGIN_HEADER, b"1/2")])
    assert row.position == 12
    assert row.service is None
    assert (row.origin_partition, row.origin_offset) == (1, 2)


def allowed(service: str) -> str | None:
    try:
        return check_service(service)
    except ProtocolError:
        return None


def assert_unknown(row: Any) -> None:
    found = row.asDict()
    names = ("message_id", "transaction_id", "position", "service", "origin_partition", "origin_offset")
    assert {name: found[name] for name in names} == dict.fromkeys(names)
