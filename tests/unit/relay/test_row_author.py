"""Which records a table source wrote, and whether their rows are still to be delivered (R31)."""

from unittest.mock import Mock

import pytest

from outbox._rules.source_progress import Progress
from outbox.protocol.half import HalfControl, Truth, real_headers
from outbox.protocol.identifiers import table_transaction_id
from outbox.protocol.record import Record
from relay.recovery.author import Found
from relay.table.kafka_progress import RowAuthor
from relay.table.owned_table import is_id as is_id_of
from relay.table.source_table import SourceTable

SOURCE, TOPIC = "shop", "orders"
WAITS, NEWEST, GONE = 7, 8, 9
"""Ids of rows: one waits, one is of the newest batch, one was delivered."""
OURS, OTHER = table_transaction_id(70, 1_000), table_transaction_id(71, 1_000)


@pytest.fixture
def table() -> Mock:
    there = {str(WAITS): {OURS}, str(NEWEST): {OURS}}
    made = Mock(spec=SourceTable)
    made.origin = SOURCE
    made.transaction_ids.side_effect = lambda ids: {id_: there[id_] for id_ in ids if id_ in there}
    made.progress.return_value = Progress("i", 3, 2, (NEWEST,))
    return made


def found(offset: int, row: int, transaction_id: str = OURS, origin: int | str = SOURCE) -> Found:
    control = HalfControl(TOPIC, -1, transaction_id, row, "g", Truth.ROW)
    return Found(Record(TOPIC, 0, b"key", b"value", real_headers(control, (), origin, row), 1_000), offset)


@pytest.mark.parametrize(
    ("lie_there", "last", "is_owed"),
    [
        ([found(0, WAITS)], 0, True),
        ([found(0, WAITS), found(1, GONE)], 1, False),
        ([found(0, GONE), found(1, WAITS)], 1, True),
        ([found(0, NEWEST)], 0, False),
        ([found(0, WAITS), found(1, NEWEST)], 1, False),
        ([found(0, WAITS), found(1, WAITS, OTHER)], 0, True),
        ([found(0, WAITS), found(1, WAITS, origin="store"), found(2, WAITS, origin=3)], 0, True),
    ],
    ids=["waits", "last-delivered", "last-waits", "newest", "last-newest", "table-of-same-name", "other-origin"],
)
def test_last_record_shows_its_outcome(table: Mock, lie_there: list[Found], last: int, *, is_owed: bool) -> None:
    own = RowAuthor(table, is_delivered=True).last_own(lie_there, ())
    assert own is not None
    assert (own.offset, own.is_owed, own.record) == (last, is_owed, lie_there[last].record)


def test_rows_of_a_batch_that_hangs_are_owed(table: Mock) -> None:
    own = RowAuthor(table, is_delivered=False).last_own([found(0, NEWEST)], ())
    assert own is not None
    assert own.is_owed


@pytest.mark.parametrize(
    "foreign",
    [
        Record(TOPIC, 0, b"key", b"value", [], 1_000),
        Record(TOPIC, 0, None, None, [("outbox-id", b"x/0"), ("outbox-origin", b"shop/")], 1_000),
        Record(TOPIC, 0, None, None, [("outbox-origin", b"shop/7")], 1_000),
        found(0, WAITS, origin="store").record,
    ],
)
def test_database_is_not_asked_about_records_of_others(table: Mock, foreign: Record) -> None:
    assert RowAuthor(table, is_delivered=True).last_own([Found(foreign, 0)], ()) is None
    table.transaction_ids.assert_not_called()


@pytest.mark.parametrize(
    ("kind", "text", "is_id"),
    [
        *(("bigint[]", text, True) for text in ("7", "-7", str(2**63 - 1))),
        *(("bigint[]", text, False) for text in (str(2**63), "9" * 5_000, "x", "\u0667")),
        ("uuid[]", "0192f0c1-7e3a-7b5c-8d4e-5f6a7b8c9d0e", True),
        *(("uuid[]", text, False) for text in ("{0192f0c17e3a7b5c8d4e5f6a7b8c9d0e}", "7")),
        *(("text[]", "a/b", True), ("text[]", "a\0b", False)),
    ],
)
def test_no_header_makes_a_statement_fail(kind: str, text: str, *, is_id: bool) -> None:
    """An origin header may have anything behind the name of the source."""
    assert is_id_of(text, kind) is is_id
