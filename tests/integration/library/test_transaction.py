"""`outbox.transaction(connection)`: a local transaction on psycopg whose BEGIN and COMMIT the library owns."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from outbox import Message
from outbox.errors import TransactionFenced, UsageError
from tests.support.shop import Shop

Connection = psycopg.Connection[Any]


class _BodyError(Exception):
    """What the body of a block raises."""


@pytest.fixture(params=[True, False], ids=["autocommit", "no autocommit"])
def connection(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Connection]:
    with psycopg.connect(shop.site.postgres_url, autocommit=request.param) as made:
        yield made
        assert made.autocommit is request.param


def _insert(shop: Shop, connection: Connection, number: int) -> None:
    connection.execute(f"INSERT INTO {shop.table} VALUES ({number}, 0)".encode())


def _message(shop: Shop, topic: str, value: str) -> Message:
    return Message(shop.site.topic(topic), value, topic)


def test_a_block_without_messages_commits(shop: Shop, connection: Connection) -> None:
    number = shop.number()
    with shop.outbox.transaction(connection):
        _insert(shop, connection, number)
    assert shop.has(number)


def test_psycopgs_own_transaction_blocks_are_savepoints_inside(shop: Shop, connection: Connection) -> None:
    topic, number = shop.topic(), shop.number()

    def body() -> None:
        with shop.outbox.transaction(connection) as tx:
            tx.publish(_message(shop, topic, "never"))
            with connection.transaction():
                _insert(shop, connection, number)
            raise _BodyError

    with pytest.raises(_BodyError):
        body()
    assert not shop.has(number)


def test_the_connections_own_isolation_level_holds(shop: Shop, connection: Connection) -> None:
    connection.isolation_level = IsolationLevel.SERIALIZABLE
    with shop.outbox.transaction(connection) as tx:
        level = connection.execute("SHOW transaction_isolation").fetchone()
        tx.publish(_message(shop, shop.topic(), "v"))
    assert level == ("serializable",)


def test_a_connection_with_factories_of_its_own(shop: Shop, connection: Connection) -> None:
    topic = shop.topic()
    connection.row_factory = dict_row
    connection.cursor_factory = RawCursor
    with shop.outbox.transaction(connection) as tx:
        assert connection.execute("SELECT $1::int AS n", (7,)).fetchone() == {"n": 7}
        tx.publish(_message(shop, topic, "v"))
    assert shop.delivered(1, topic) == ["v"]


def test_commit_always_waits_for_the_disk(shop: Shop, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def look(name: str) -> None:
        if name == "outbox.sealed":
            seen.append(connection.execute("SHOW synchronous_commit").fetchone())

    monkeypatch.setattr("outbox._half.seal.failpoint", look)
    with shop.outbox.transaction(connection) as tx:
        connection.execute("SET LOCAL synchronous_commit = off")
        tx.publish(_message(shop, shop.topic(), "v"))
    assert seen == [("on",)]


def test_the_checker_was_first(shop: Shop, connection: Connection) -> None:
    topic, number = shop.topic(), shop.number()

    def body() -> None:
        with shop.outbox.transaction(connection) as tx:
            _insert(shop, connection, number)
            tx.publish(_message(shop, topic, "never"))
            insert = f"INSERT INTO {shop.site.tables.transaction} VALUES (%s, 'orders', 'R', 'x', %s, 0, 0, 0, '0')"
            shop.site.sql(insert, tx.transaction_id, tx.transaction_id)

    with pytest.raises(TransactionFenced):
        body()
    assert connection.info.transaction_status is TransactionStatus.IDLE
    assert not shop.has(number)


def test_a_transaction_that_failed_and_nobody_noticed(shop: Shop, connection: Connection) -> None:
    def body() -> None:
        with shop.outbox.transaction(connection) as tx:
            with pytest.raises(psycopg.errors.DivisionByZero):
                connection.execute("SELECT 1/0")
            tx.publish(_message(shop, shop.topic(), "never"))

    with pytest.raises(UsageError, match=r"nothing was published\. Roll it back"):
        body()
    assert connection.info.transaction_status is TransactionStatus.IDLE


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("more", [[], ["SELECT 1"]], ids=["nothing after it", "statements after it"])
def test_a_transaction_ended_inside_the_block(shop: Shop, connection: Connection, end: str, more: list[str]) -> None:
    topic = shop.topic()

    def body() -> None:
        with shop.outbox.transaction(connection) as tx:
            connection.execute("SELECT 1")
            tx.publish(_message(shop, topic, "never"))
            getattr(connection, end)()
            for statement in more:
                connection.execute(statement.encode())

    remedy = "was ended inside the block" if more else "Leave BEGIN, COMMIT and ROLLBACK to the block or the session"
    with pytest.raises(UsageError, match=remedy):
        body()
    assert connection.info.transaction_status is TransactionStatus.IDLE
    assert shop.site.read(topic) == []
