"""Who publishes is heard where no relay delivers the message table (R82)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from outbox import AsyncOutbox, Message, Outbox
from outbox._postgres.ddl import identifier
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import TRY_OWN
from outbox._table import row_writer
from outbox.prometheus import PrometheusRecorder
from outbox.recorder import NoRecorder
from tests.support.doors import DOORS, sqlalchemy_url
from tests.support.harness import Site, wait_until
from tests.support.servers import Servers

WARNED = "No relay delivers the message table"


class Looks(NoRecorder):
    def __init__(self) -> None:
        self.found: list[int] = []

    def table_looked_at(self, service: str, unowned_seconds: int) -> None:
        del service
        self.found.append(unowned_seconds)


class Place:
    """A message table with a row of ten minutes ago, and no relay."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.create_tables(MessageTable)
        site.sql(
            f"INSERT INTO {site.tables.message} (service, topic, created_at)"
            " VALUES ('orders', 'orders', now() - interval '10 minutes')"
        )

    @contextmanager
    def owned(self) -> Iterator[None]:
        with self.site.connect() as connection:
            source = identifier(self.site.tables.schema, self.site.tables.source)
            assert connection.execute(TRY_OWN, (source,)).fetchone() == (True,)
            owner = connection.info.backend_pid
            yield
        with self.site.connect() as connection:  # the server ends a session after its client left
            gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
            wait_until(lambda: connection.execute(gone, (owner,)).fetchone() == (True,))


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[Place]:
    with Site(servers.bootstrap_servers, servers.postgres_url) as site:
        yield Place(site)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Looks:
    monkeypatch.setattr(row_writer, "LOOK_SECONDS", 0.0)
    caplog.set_level(logging.WARNING, "outbox")
    return Looks()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(WARNED)]


@pytest.mark.parametrize("door", DOORS)
def test_a_table_without_an_owner_is_told_through_each_driver(
    place: Place, looks: Looks, caplog: pytest.LogCaptureFixture, door: str
) -> None:
    """The first publication asks whether it may look, the next two look; many messages look as one does."""
    outbox = Outbox("orders", tables=place.site.tables, recorder=looks)
    with DOORS[door](place.site.postgres_url) as opened:
        for _ in range(3):
            outbox.publish(opened.target, Message("orders", b"v"))
        opened.commit()
        assert looks.found[0] == 0
        assert looks.found[1] >= 600
        assert len(warnings(caplog)) == 1
        assert place.site.tables.message in warnings(caplog)[0]
        with place.owned():
            outbox.publish(opened.target, Message("orders", b"v"))
            opened.commit()
        assert looks.found[2:] == [0]
        for _ in range(2):
            outbox.publish_many(opened.target, [Message("orders", b"v")] * 200)
        opened.commit()
        assert looks.found[3] == 0, "one look alone may be the moment of a restart"
        assert looks.found[4] >= 600
    outbox.close()


async def test_a_table_without_an_owner_is_told_through_async_drivers(place: Place, looks: Looks) -> None:
    outbox = AsyncOutbox("orders", tables=place.site.tables, recorder=looks)
    engine = create_async_engine(sqlalchemy_url(place.site.postgres_url, "asyncpg"))
    async with AsyncSession(engine) as session, session.begin():
        await outbox.publish(session, Message("orders", b"v"))
        await outbox.publish(session, Message("orders", b"v"))
    connection = await asyncpg.connect(place.site.postgres_url)
    async with connection.transaction():
        await outbox.publish(connection, Message("orders", b"v"))
    await connection.close()
    async with await psycopg.AsyncConnection.connect(place.site.postgres_url) as other:
        await outbox.publish_many(other, [Message("orders", b"v")] * 200)
    await engine.dispose()
    await outbox.close()
    assert (looks.found[0], min(looks.found[1:]) >= 600, len(looks.found)) == (0, True, 3)


def test_looks_are_a_minute_apart(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [1_000.0], Looks()
    monkeypatch.setattr("outbox._table.row_writer.time", SimpleNamespace(monotonic=lambda: now[0]))
    outbox = Outbox("orders", tables=place.site.tables, recorder=looks)
    with psycopg.connect(place.site.postgres_url) as connection:
        for _ in range(10):
            outbox.publish(connection, Message("orders", b"v"))
        assert looks.found == [0]
        now[0] += row_writer.LOOK_SECONDS
        for _ in range(10):
            outbox.publish(connection, Message("orders", b"v"))
    assert (looks.found[0], looks.found[1] >= 600, len(looks.found)) == (0, True, 2)
    outbox.close()


def test_a_look_fails_no_transaction(place: Place, looks: Looks) -> None:
    """Neither of a role that may not see locks, nor of a serializable transaction, which reads no row for it."""
    site, role = place.site, f"{place.site.name}_app"
    with site.connect() as owner:
        owner.execute(f"CREATE ROLE {role} LOGIN".encode())
        MessageTable(site.tables).create(owner, [MessageTable(site.tables).application_grant(role)])
        outbox = Outbox("orders", tables=site.tables, recorder=looks)
        owner.execute("REVOKE SELECT ON pg_locks FROM PUBLIC")
        try:
            _publish(site, outbox, f"SET ROLE {role}")
        finally:
            owner.execute("GRANT SELECT ON pg_locks TO PUBLIC")
        assert looks.found == []
        outbox.close()
        outbox = Outbox("orders", tables=site.tables, recorder=looks)
        _publish(site, outbox, f"SET ROLE {role}")
        assert looks.found[-1] >= 600
        _publish(site, outbox, "SET default_transaction_isolation = 'serializable'")
        assert looks.found[-3:] == [0, 0, 0]
        outbox.close()


def _publish(site: Site, outbox: Outbox, first: str) -> None:
    with site.connect() as connection:
        connection.execute(first.encode())
        with connection.transaction():
            for _ in range(3):
                outbox.publish(connection, Message("orders", b"v"))


def test_messages_whose_time_has_come_are_looked_at(servers: Servers, looks: Looks) -> None:
    with Site(servers.bootstrap_servers, servers.postgres_url) as site, site.connect() as connection:
        MessageTable(site.tables).create(connection)
        outbox = Outbox("orders", tables=site.tables, recorder=looks)
        with connection.transaction():
            for minutes in (10, -10, -10, 10):
                time = datetime.now(UTC) + timedelta(minutes=minutes)
                outbox.publish(connection, Message("orders", b"v", not_before=time))
        outbox.close()
    assert (looks.found[:2], looks.found[2] >= 600, len(looks.found)) == ([0, 0], True, 3)


def test_the_metric_begins_at_zero(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert by `increase()` would not see a counter whose first value is 1."""
    monkeypatch.setattr(row_writer, "LOOK_SECONDS", 0.0)
    registry, values = CollectorRegistry(), list[Any]()
    recorder = PrometheusRecorder(registry)
    with Outbox("orders", tables=place.site.tables, recorder=recorder) as outbox, place.site.connect() as one:
        for _ in range(4):
            with one.transaction():
                outbox.publish(one, Message("orders", b"v"))
            values.append(registry.get_sample_value("outbox_table_unowned_total", {"service": "orders"}))
    assert values == [None, 0, 1, 2]
