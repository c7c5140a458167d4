"""The INSERT and the COPY of table mode, and connections: of drivers that nothing is known of, and wrong ones."""

import asyncio
from typing import Any

import pytest

from outbox import Message, MessageRefused, Outbox, TableNames
from outbox._publish.local_connection import local_connection
from outbox._table.message_insert import MessageInsert
from outbox._table.row_writer import RowCopy
from outbox.async_outbox import AsyncOutbox
from outbox.errors import UsageError
from outbox.protocol.identifiers import table_transaction_id
from outbox.transaction import Outcome

INSERT = MessageInsert(TableNames("app-1", "box"), "orders")


def test_table_is_quoted_and_placeholders_are_those_of_the_driver() -> None:
    text, parameters = INSERT.of([Message("t", b"v", b"k")], numbered=False)
    assert text.startswith('INSERT INTO "app-1"."box_message" (service, ')
    assert text.count("%s") == len(parameters) == 8
    numbered = INSERT.of([Message("t")], numbered=True).text
    assert "%s" not in numbered
    assert [f"${number}" in numbered for number in range(1, 9)] == [True] * 8


def test_text_of_many_messages_does_not_grow_with_them() -> None:
    two, many = ([Message("t", str(n)) for n in range(count)] for count in (2, 1_000))
    assert INSERT.of(two, numbered=False).text == INSERT.of(many, numbered=False).text
    expected = ("orders", "t,t", "-1,-1", "-,-", "-,-", r"\x30,\x31", ",", " ")
    assert INSERT.of(two, numbered=True).parameters == expected


def test_headers_of_many_messages_are_one_text() -> None:
    odd = Message("t", headers=[('q"\\ {},', b"\0\xff"), ("NULL", None), ("é", b"")])
    *_, names, contents = INSERT.of([Message("t"), odd], numbered=False).parameters
    assert names == "," + '{"q\\"\\\\ {},","NULL","é"}'.encode().hex()
    assert contents == r" \x00ff,-,\x"


class Cursor:
    def __init__(self, row: Any) -> None:
        self._row = row

    def execute(self, text: str, parameters: object) -> None:
        """Do nothing."""

    def fetchall(self) -> list[Any]:
        return [self._row]

    def close(self) -> None:
        """Do nothing."""


class Strange:
    """A connection of a driver that does not report whether a transaction is open."""

    def __init__(self, row: Any, *, autocommit: bool = False) -> None:
        self.autocommit = autocommit
        self.rollbacks = 0
        self._row = row

    def cursor(self) -> Any:
        return Cursor(self._row)

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        self.rollbacks += 1


@pytest.mark.parametrize("row", [("7", "755", "1"), {"id": "7", "xid": "755", "text": "1"}, (b"7", b"755", b"1")])
def test_any_driver_with_cursors_may_insert(row: object) -> None:
    with Outbox("orders") as outbox:
        receipt = outbox.publish(Strange(row), Message("t"))
    assert receipt.message_id == f"{table_transaction_id(755, 1)}/7"


def test_message_to_own_channel_is_refused() -> None:
    with Outbox("orders", channel="shop") as outbox:
        outbox.publish(Strange(("7", "755", "1")), Message("other.half"))
        with pytest.raises(MessageRefused, match=r"'shop.half' is an internal topic"):
            outbox.publish(Strange(None), Message("shop.half"))


def test_autocommit_of_a_driver_that_reports_no_transaction_is_refused() -> None:
    with Outbox("orders") as outbox, pytest.raises(UsageError, match="committed alone"):
        outbox.publish(Strange(None, autocommit=True), Message("t"))


def test_outcome_never_rolls_back_what_may_be_the_callers() -> None:
    connection = Strange(("committed",))
    with Outbox("orders") as outbox:
        assert outbox.outcome(table_transaction_id(755, 1), connection) is Outcome.COMMITTED
    assert connection.rollbacks == 0


@pytest.mark.parametrize("outcome", Outcome)
def test_outcome_is_never_a_guess(outcome: Outcome) -> None:
    with Outbox("orders") as outbox:
        assert outbox.outcome(table_transaction_id(755, 1), Strange((str(outcome),))) is outcome
        with pytest.raises(UsageError, match="standby"):
            outbox.outcome(table_transaction_id(755, 1), Strange(("standby",)))


COPY = RowCopy("app-1", "box_message", "orders")
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


NOTHING: Any = "x"


def test_table_mode_names_the_connections_that_it_takes() -> None:
    async def publish() -> None:
        await AsyncOutbox("shop").publish(NOTHING, Message("orders"))

    with pytest.raises(UsageError, match=r"not str\. It also takes a connection of psycopg or asyncpg"):
        asyncio.run(publish())


def test_another_driver_in_half_mode_is_pointed_to_table_mode() -> None:
    with pytest.raises(UsageError, match=r"publish\(\) of an Outbox, in table mode, takes other drivers"):
        local_connection(NOTHING)
