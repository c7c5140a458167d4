"""`publish_many()` of many messages: by COPY where the connection can, by an INSERT elsewhere, with the same rows."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import AsyncOutbox, Message, Outbox, Receipt, TableNames
from outbox._postgres.message_table import MessageTable
from outbox._table.psycopg_connection import PsycopgConnection
from outbox._table.row_writer import COPY_ROWS
from outbox.errors import TableError
from tests.support.doors import sqlalchemy_url
from tests.support.harness import Site
from tests.support.servers import Servers

MANY = [Message("orders", str(number), str(number % 7), {"n": str(number)}) for number in range(COPY_ROWS)]


class Place:
    def __init__(self, site: Site) -> None:
        self.url = site.postgres_url
        self.tables = site.tables
        self.site = site
        self.outbox = Outbox("orders", tables=site.tables)
        site.create_tables(MessageTable)

    def taken(self) -> list[tuple[int, bytes]]:
        """Take away all committed rows: their ids and values, in the order of the ids."""
        return self.site.sql(
            f"WITH taken AS (DELETE FROM {self.tables.message} RETURNING id, value) "
            "SELECT id, value FROM taken ORDER BY id"
        )


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[Place]:
    with Site(servers.bootstrap_servers, servers.postgres_url) as site:
        made = Place(site)
        yield made
        made.outbox.close()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ran: list[str] = []
    original = PsycopgConnection.copy

    def copy(self: PsycopgConnection, text: str, pieces: Any) -> int:
        ran.append(text)
        return original(self, text, pieces)

    monkeypatch.setattr(PsycopgConnection, "copy", copy)
    return ran


def expected(receipts: list[Receipt]) -> list[tuple[int, bytes]]:
    return [(receipt.position, message.value_bytes() or b"") for receipt, message in zip(receipts, MANY, strict=True)]


def test_few_messages_are_inserted_and_many_are_copied(place: Place, copies: list[str]) -> None:
    with psycopg.connect(place.url) as connection:
        place.outbox.publish_many(connection, MANY[1:])
        assert copies == []
        place.outbox.publish_many(connection, MANY)
    assert len(copies) == 1
    assert len(place.taken()) == 2 * COPY_ROWS - 1


def test_copied_rows_have_the_ids_of_their_receipts_beside_other_transactions(place: Place, copies: list[str]) -> None:
    """Another transaction inserts between two copies, and commits first."""
    with psycopg.connect(place.url) as one, psycopg.connect(place.url) as other:
        first = place.outbox.publish_many(one, MANY)
        theirs = place.outbox.publish_many(other, MANY)
        second = place.outbox.publish_many(one, MANY)
        other.commit()
        assert place.taken() == expected(theirs)
    assert place.taken() == [*expected(first), *expected(second)]
    assert len({receipt.transaction_id for receipt in (*first, *second)}) == 1
    assert len(copies) == 3


def test_a_core_connection_begins_its_transaction_for_a_copy(place: Place, copies: list[str]) -> None:
    engine = create_engine(sqlalchemy_url(place.url, "psycopg"))
    with engine.connect() as connection:
        place.outbox.publish_many(connection, MANY)
        assert connection.in_transaction()
        connection.rollback()
        assert place.taken() == []
        receipts = place.outbox.publish_many(connection, MANY)
        connection.commit()
    engine.dispose()
    assert place.taken() == expected(receipts)
    assert len(copies) == 2


def test_an_async_session_of_psycopg_copies(place: Place, copies: list[str]) -> None:
    async def publish() -> list[Receipt]:
        engine = create_async_engine(sqlalchemy_url(place.url, "psycopg"))
        async with AsyncSession(engine) as session, session.begin():
            receipts = await AsyncOutbox.over(place.outbox).publish_many(session, MANY)
        async with AsyncSession(engine) as session:
            await AsyncOutbox.over(place.outbox).publish_many(session, MANY)
            await session.rollback()
        await engine.dispose()
        return receipts

    receipts = asyncio.run(publish())
    assert place.taken() == expected(receipts)
    assert len(copies) == 2


def test_a_copy_in_a_savepoint_vanishes_with_it(place: Place, copies: list[str]) -> None:
    with psycopg.connect(place.url) as connection:
        first = place.outbox.publish_many(connection, MANY)
        with connection.transaction(force_rollback=True):
            place.outbox.publish_many(connection, MANY)
        second = place.outbox.publish_many(connection, MANY)
    assert place.taken() == [*expected(first), *expected(second)]
    assert len(copies) == 3


def test_a_serializable_transaction_reads_no_rows(place: Place, copies: list[str]) -> None:
    """Two of them at once commit: a read of the index that both extend would make one fail."""
    with psycopg.connect(place.url) as one, psycopg.connect(place.url) as other:
        for connection in (one, other):
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        place.outbox.publish_many(one, MANY)
        place.outbox.publish_many(other, MANY)
        other.commit()
    assert copies == []
    assert len(place.taken()) == 2 * COPY_ROWS


def test_row_security_and_a_pipeline_leave_it_to_the_insert(place: Place, copies: list[str]) -> None:
    role, table = f"{place.site.name}_secured", place.tables.message
    place.site.role("secured", MessageTable(place.tables).application_grant)
    place.site.sql(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    place.site.sql(f"CREATE POLICY own ON {table} TO {role} USING (true)")
    with psycopg.connect(place.url) as connection:
        connection.execute(f"SET LOCAL ROLE {role}".encode())
        place.outbox.publish_many(connection, MANY)
    place.site.sql(f"DROP POLICY own ON {table}")
    place.site.sql(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    with psycopg.connect(place.url) as connection, connection.pipeline():
        place.outbox.publish_many(connection, MANY)
    assert copies == []
    assert len(place.taken()) == 2 * COPY_ROWS


def test_a_role_with_the_grant_of_an_application_copies(place: Place, copies: list[str]) -> None:
    with psycopg.connect(place.site.role("granted", MessageTable(place.tables).application_grant)) as connection:
        receipts = place.outbox.publish_many(connection, MANY)
    assert place.taken() == expected(receipts)
    assert len(copies) == 1


def test_another_client_encoding_leaves_it_to_the_insert(place: Place, copies: list[str]) -> None:
    odd = [Message("orders", "é", headers={"é": "é"})] * COPY_ROWS
    with psycopg.connect(place.url, client_encoding="latin1") as connection:
        place.outbox.publish_many(connection, odd)
    names = place.site.sql(f"SELECT DISTINCT header_names FROM {place.tables.message}")
    assert names == [(["é"],)]
    assert {value for _, value in place.taken()} == {"é".encode()}
    assert copies == []


def test_an_error_of_a_copy_is_one_of_sqlalchemy(place: Place, copies: list[str]) -> None:
    engine = create_engine(sqlalchemy_url(place.url, "psycopg"))
    with (
        trigger(place, "BEFORE", "RAISE unique_violation"),
        pytest.raises(IntegrityError, match="unique_violation"),
        Session(engine) as session,
    ):
        place.outbox.publish_many(session, MANY)
    outbox = Outbox("orders", tables=TableNames(prefix="missing"))
    with outbox, pytest.raises(TableError, match="outbox table create"), Session(engine) as session:
        outbox.publish_many(session, MANY)
    engine.dispose()
    assert len(copies) == 1
    assert place.taken() == []


DROP = "RETURN CASE WHEN NEW.value = '2' THEN NULL ELSE NEW END"
ADD = "INSERT INTO {table} (service, topic) SELECT 'audit', 'audit' WHERE NEW.topic <> 'audit'; RETURN NEW"


@contextmanager
def trigger(place: Place, when: str, body: str) -> Iterator[None]:
    name = place.tables.message
    with place.site.connect() as connection:
        text = f"CREATE FUNCTION {name}_f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body}; END$$"
        connection.execute(text.format(table=name).encode())
        connection.execute(
            f"CREATE TRIGGER f {when} INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION {name}_f()".encode()
        )
        try:
            yield
        finally:
            connection.execute(f"DROP FUNCTION {name}_f CASCADE".encode())


@pytest.mark.parametrize(
    ("when", "body", "count"),
    [("BEFORE", DROP, 1), ("BEFORE", DROP, 3), ("BEFORE", DROP, COPY_ROWS), ("AFTER", ADD, COPY_ROWS)],
    ids=["one dropped", "one of few dropped", "one of many dropped", "one added for each of many"],
)
def test_a_trigger_that_drops_or_adds_rows_ends_the_transaction(place: Place, when: str, body: str, count: int) -> None:
    """R78: who catches the error and commits has published nothing, and changed nothing."""
    messages = MANY[2:3] if count == 1 else MANY[:count]
    with trigger(place, when, body), psycopg.connect(place.url) as connection:
        place.outbox.publish(connection, Message("orders", "before"))
        with pytest.raises((TableError, IndexError, ValueError)) as caught:
            place.outbox.publish_many(connection, messages)
        assert "a trigger of the table drops or adds rows" in str(caught.value)
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.commit()
    assert place.taken() == []


def test_rows_that_a_trigger_adds_beside_few_messages_are_not_their_receipts(place: Place) -> None:
    with trigger(place, "AFTER", ADD), psycopg.connect(place.url) as connection:
        receipts = place.outbox.publish_many(connection, MANY[:3])
    taken = dict(place.taken())
    assert len(taken) == 6
    assert [taken[receipt.position] for receipt in receipts] == [b"0", b"1", b"2"]
