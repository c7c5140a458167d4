"""Transactions that end where nobody expects it: by SQL in a session, or by an exception at any line (R47)."""

from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import text
from sqlalchemy.orm import Session

import outbox._publish.own_transaction
from outbox import Message
from outbox.errors import CommitOutcomeUnknown, UsageError
from tests.support.interrupting import Interrupter, Interruption
from tests.support.shop import Shop


def publish_interrupted(shop: Shop, connection: psycopg.Connection[Any], topic: str, line: int) -> tuple[int, int]:
    """Insert a row and publish its number, interrupted at a line; return the number, and how many lines there were."""
    number = shop.number()
    module = outbox._publish.own_transaction.__file__  # it owns BEGIN and COMMIT
    with Interrupter(line, module.__eq__, lambda _: True) as interrupter:
        try:
            with shop.outbox.transaction(connection) as transaction:
                connection.execute(f"INSERT INTO {shop.table} VALUES ({number}, 0)".encode())
                transaction.publish(Message(shop.site.topic(topic), str(number), topic))
        except (Interruption, CommitOutcomeUnknown):
            pass
    return number, interrupter.lines


def test_exception_at_any_line_gives_both_or_neither(shop: Shop) -> None:
    """The connection is never left in the transaction."""
    topic = shop.topic()
    with psycopg.connect(shop.site.postgres_url) as connection:
        whole, lines = publish_interrupted(shop, connection, topic, 0)
    numbers = [whole]
    for line in range(1, lines + 1):
        connection = psycopg.connect(shop.site.postgres_url)
        numbers.append(publish_interrupted(shop, connection, topic, line)[0])
        assert connection.closed or connection.info.transaction_status is TransactionStatus.IDLE, f"line {line}"
        connection.close()
    committed = {str(number) for number in numbers if shop.has(number)}
    assert len(committed) > 1
    assert len(committed) < len(numbers)
    shop.site.wait_settled()
    assert sorted(shop.delivered(len(committed), topic)) == sorted(committed)


RAW_ENDS = ["ROLLBACK", "rollback work", " /* so */ COMMIT AND CHAIN", "-- a\nABORT", "END", "PREPARE TRANSACTION 'x'"]


@pytest.mark.parametrize("statement", RAW_ENDS)
def test_end_in_sql_of_a_session_is_refused(shop: Shop, statement: str) -> None:
    topic, number = shop.topic(), shop.number()
    with Session(shop.engine) as session, session.begin():
        shop.insert(session, number)
        shop.publish(session, topic, "first")
        with pytest.raises(UsageError, match="in a transaction with messages was refused"):
            session.execute(text(statement))
    assert shop.delivered(1, topic) == ["first"]
    assert shop.has(number)


@pytest.mark.parametrize("statement", ["ROLLBACK TO SAVEPOINT mine", "rollback work to mine", "SELECT 'COMMIT'"])
def test_other_sql_of_a_session_goes_on(shop: Shop, statement: str) -> None:
    topic = shop.topic()
    with Session(shop.engine) as session, session.begin():
        session.execute(text("SAVEPOINT mine"))
        shop.publish(session, topic, "first")
        session.execute(text(statement))
    assert shop.delivered(1, topic) == ["first"]


def test_end_in_sql_before_the_first_message_is_the_users(shop: Shop) -> None:
    topic = shop.topic()
    with Session(shop.engine) as session:
        session.execute(text("ROLLBACK"))
        shop.publish(session, topic, "first")
        session.commit()
    assert shop.delivered(1, topic) == ["first"]
