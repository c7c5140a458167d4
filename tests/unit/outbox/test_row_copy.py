"""Messages in the binary format of COPY."""

from __future__ import annotations

from outbox import Message, TableNames
from outbox._table.row_writer import RowCopy

COPY = RowCopy(TableNames("app-1", "box"), "orders")
SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)
START = b"\0\x08" + b"\0\0\0\6orders" + b"\0\0\0\1t"
NULL = b"\xff\xff\xff\xff"


def copied(*messages: Message) -> bytes:
    return b"".join(COPY.pieces(messages))


def test_copy_quotes_its_table() -> None:
    assert COPY.text.startswith('COPY "app-1"."box_message" (service, topic, ')
    assert COPY.last.parameters == ('"app-1"."box_message"',)
    assert COPY.after(7).parameters == (7,)


def test_copy_of_nothing_is_signature_and_trailer() -> None:
    assert copied() == SIGNATURE + b"\xff\xff"


def test_copy_of_a_bare_message_has_nulls() -> None:
    assert copied(Message("t")) == SIGNATURE + START + b"\0\0\0\4" + NULL + NULL * 5 + b"\xff\xff"


def test_copy_of_a_message_has_all_its_columns() -> None:
    message = Message("t", "é", b"", [("é", b"\0"), ("x", None)], partition=2, timestamp=5)
    numbers = b"\0\0\0\4\0\0\0\2" + b"\0\0\0\x08\0\0\0\0\0\0\0\5"
    content = bytes(4) + b"\0\0\0\2\xc3\xa9"
    names = bytes([0, 0, 0, 31, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 25, 0, 0, 0, 2, 0, 0, 0, 1])
    values = bytes([0, 0, 0, 29, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 17, 0, 0, 0, 2, 0, 0, 0, 1])
    headers = names + b"\0\0\0\2\xc3\xa9\0\0\0\1x" + values + b"\0\0\0\1\0" + NULL
    assert copied(message) == SIGNATURE + START + numbers + content + headers + b"\xff\xff"


def test_large_messages_are_several_pieces() -> None:
    large = Message("t", bytes(40_000))
    pieces = list(COPY.pieces([large] * 3))
    assert [len(piece) > 40_000 for piece in pieces] == [True, True, True, False]
    assert b"".join(pieces).count(START) == 3
