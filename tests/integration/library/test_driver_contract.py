"""One suite for connections of drivers: the outbox in memory follows their transactions as the message table does."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
from django.db import transaction as django_transaction

from outbox import AsyncOutbox, Message, Outbox
from outbox.errors import MessageRefused, UsageError
from outbox.testing import InMemoryOutbox, assert_published, assert_published_async
from outbox.testing.own_rows import rows_of
from outbox.transaction import Outcome
from stack import postgres_alone
from tests.support import message_rows
from tests.support.doors import DOORS, Opened, django_connection
from tests.support.harness import Site

DRIVERS = [name for name in DOORS if name.startswith(("psycopg", "pg8000", "Django"))]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with postgres_alone() as server, Site("127.0.0.1:1", server.url) as made:
        message_rows.create(made)
        yield made


@pytest.fixture(params=["in memory", "in Postgres"])
def outbox(request: pytest.FixtureRequest, site: Site) -> Iterator[Outbox]:
    site.sql(f"DELETE FROM {site.tables.message}")
    with InMemoryOutbox() if request.param == "in memory" else Outbox("test", tables=site.tables) as made:
        yield made


@pytest.fixture(params=DRIVERS)
def opened(site: Site, request: pytest.FixtureRequest) -> Iterator[Opened]:
    site.sql(f"DELETE FROM {site.tables.message}")
    with DOORS[request.param](site.postgres_url) as made:
        yield made


def _published(outbox: Outbox, site: Site) -> list[bytes | None]:
    if isinstance(outbox, InMemoryOutbox):
        return [message.value for message in outbox.published]
    with site.connect() as connection:
        return [message.value for message in rows_of(connection, site.tables)]


def _uncommitted(outbox: Outbox, site: Site, opened: Opened) -> list[bytes | None]:
    if isinstance(outbox, InMemoryOutbox):
        return [message.value for message in outbox.uncommitted]
    return [message.value for message in rows_of(opened.target, site.tables)]


def test_commit_rollback_and_savepoints(outbox: Outbox, site: Site, opened: Opened) -> None:
    outbox.publish_many(opened.target, [Message("orders", "1"), Message("orders", "2")])
    opened.execute("SAVEPOINT here")
    outbox.publish(opened.target, Message("orders", "struck"))
    assert _uncommitted(outbox, site, opened) == [b"1", b"2", b"struck"]
    opened.execute("ROLLBACK TO SAVEPOINT here")
    outbox.publish(opened.target, Message("orders", "3"))
    assert _uncommitted(outbox, site, opened) == [b"1", b"2", b"3"]
    assert _published(outbox, site) == []
    opened.commit()
    assert _published(outbox, site) == [b"1", b"2", b"3"]
    outbox.publish(opened.target, Message("orders", "never"))
    opened.rollback()
    assert _published(outbox, site) == [b"1", b"2", b"3"]


def test_outcomes_and_limits(outbox: Outbox, site: Site, opened: Opened) -> None:
    committed = outbox.publish(opened.target, Message("orders", "1"))
    with pytest.raises(MessageRefused, match="more than 10000 messages"):
        outbox.publish_many(opened.target, [Message("orders")] * 10_000)
    with site.connect() as other:
        assert outbox.outcome(committed.transaction_id, other) is Outcome.OPEN
        opened.commit()
        rolled_back = outbox.publish(opened.target, Message("orders", "2"))
        opened.rollback()
        assert outbox.outcome(committed.transaction_id, other) is Outcome.COMMITTED
        assert outbox.outcome(rolled_back.transaction_id, other) is Outcome.ROLLED_BACK
    assert rolled_back.transaction_id != committed.transaction_id


def test_a_connection_that_is_closed_after_its_commit(outbox: Outbox, site: Site) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        outbox.publish(connection, Message("orders", "kept"))
    with psycopg.connect(site.postgres_url) as connection:
        outbox.publish(connection, Message("orders", "lost"))
        connection.close()
    assert _published(outbox, site) == [b"kept"]
    outbox.close()
    with psycopg.connect(site.postgres_url) as connection, pytest.raises(UsageError, match="closed"):
        outbox.publish(connection, Message("orders", "late"))


def _fail_after(call: Any, *arguments: object) -> None:
    call(*arguments)
    raise ZeroDivisionError


BARE = """
import asyncio, sys
sys.modules |= dict.fromkeys(["psycopg", "confluent_kafka"])
import asyncpg
from outbox import AsyncOutbox, Message, TableNames

async def publish(url, prefix):
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await AsyncOutbox("test", tables=TableNames(prefix=prefix)).publish(connection, Message("orders", "bare"))

asyncio.run(publish(*sys.argv[1:]))
"""


def test_asyncpg_needs_neither_psycopg_nor_librdkafka(site: Site) -> None:
    site.sql(f"DELETE FROM {site.tables.message}")
    subprocess.run([sys.executable, "-c", BARE, site.postgres_url, site.tables.prefix], check=True, timeout=60)
    assert site.sql(f"SELECT topic, value FROM {site.tables.message}") == [("orders", b"bare")]


async def test_asyncpg(outbox: Outbox, site: Site) -> None:
    connection = await asyncpg.connect(site.postgres_url)
    face = AsyncOutbox.over(outbox)
    async with connection.transaction():
        await face.publish(connection, Message("orders", "1"))
        nested = connection.transaction()
        await nested.start()
        await face.publish(connection, Message("orders", "struck"))
        await nested.rollback()
    never = connection.transaction()
    await never.start()
    await face.publish(connection, Message("orders", "never"))
    if not isinstance(outbox, InMemoryOutbox):
        found = await assert_published_async(connection, "orders", tables=site.tables, count=2)
        assert [record.value for record in found] == [b"1", b"never"]
    await never.rollback()
    await connection.close()
    assert await asyncio.to_thread(_published, outbox, site) == [b"1"]


def test_django_blocks(outbox: Outbox, site: Site) -> None:
    with closing(django_connection(site.postgres_url)) as connection:
        _publish_in_blocks(outbox, connection)
    assert _published(outbox, site) == [b"1", b"2"]


def test_django_on_sqlite() -> None:
    with InMemoryOutbox() as outbox, closing(_django_on_sqlite()) as connection:
        _publish_in_blocks(outbox, connection)
        with _atomic(connection):
            outbox.publish(connection, Message("orders", "3", not_before=datetime.now(UTC)))
        assert [message.value for message in outbox.published] == [b"1", b"2", b"3"]


def _django_on_sqlite() -> Any:
    from django.db.utils import ConnectionHandler  # noqa: PLC0415 - Django is configured by the other module

    return ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})["default"]


def _publish_in_blocks(outbox: Outbox, connection: Any) -> None:
    to_postgres = connection.vendor == "postgresql" and not isinstance(outbox, InMemoryOutbox)
    with _atomic(connection):
        first = outbox.publish(connection, Message("orders", "1"))
        with pytest.raises(ZeroDivisionError), _atomic(connection):
            _fail_after(outbox.publish, connection, Message("orders", "struck"))
        with _atomic(connection), connection.cursor() as cursor:
            second = outbox.publish(cursor if to_postgres else connection, Message("orders", "2"))
        if isinstance(outbox, InMemoryOutbox):
            assert [message.value for message in outbox.uncommitted] == [b"1", b"2"]
    with pytest.raises(ZeroDivisionError), _atomic(connection):
        _fail_after(outbox.publish, connection, Message("orders", "never"))
    assert first.transaction_id == second.transaction_id
    with pytest.raises(UsageError, match=r"transaction\.atomic\(\)"):
        outbox.publish(connection, Message("orders", "alone"))
    assert outbox.outcome(first.transaction_id, connection) is Outcome.COMMITTED


@contextmanager
def _atomic(connection: Any) -> Iterator[None]:
    """`transaction.atomic()` of a connection that no settings name."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(django_transaction, "get_connection", lambda _using=None: connection)
        with django_transaction.atomic():
            yield


def test_rows_of_the_tests_own_transaction(site: Site, opened: Opened) -> None:
    with Outbox("test", tables=site.tables) as outbox:
        headers = [("type", b"created"), ("é", None), ("type", b"\xff")]
        outbox.publish(opened.target, Message("orders", None, b"\0k", headers, 2, 5))
        receipt = outbox.publish(opened.target, Message("orders", '{"id": 42}', "42"))
        (found,) = assert_published(opened.target, "orders", key="42", value={"id": 42}, tables=site.tables, count=1)
        assert found.message_id == receipt.message_id
        (odd,) = assert_published(opened.target, "orders", value=None, tables=site.tables)
        assert (odd.key, odd.headers, odd.partition, odd.timestamp) == (b"\0k", tuple(headers), 2, 5)
        with pytest.raises(AssertionError, match="topic 'stock' expected, 0 published"):
            assert_published(opened.target, "stock", tables=site.tables)
        opened.rollback()
        assert assert_published(opened.target, "orders", tables=site.tables, count=0) == []
