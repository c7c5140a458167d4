"""The INSERT of table mode, and the connections of drivers that nothing is known of."""

from __future__ import annotations

from typing import Any

import pytest

from outbox import Message, MessageRefused, Outbox, TableNames
from outbox._table.message_insert import MessageInsert
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
    with Outbox("orders") as outbox, pytest.raises(UsageError, match="published alone"):
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
