"""What a table source settles is counted: a difference halts it, and nothing comes twice (R71)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from outbox.operator.commands.discarded import app
from tests.support.commands import call_command
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import (
    SOURCE,
    assert_exactly,
    create,
    publish,
    relay_settings,
    wait_empty,
    waiting,
)
from tests.support.probes import free_port, metric
from tests.support.servers import Servers

KEEP = (
    "CREATE FUNCTION {site}_keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    " CREATE TRIGGER keep BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {site}_keep()"
)


@pytest.fixture
def shop(site: Site) -> Site:
    site.create("orders", partitions=1)
    create(site)
    return site


def execute(site: Site, statement: str) -> None:
    with site.connect() as connection:
        connection.execute(statement.encode())


def insert(site: Site, *keys: str) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        publish(connection, site, "orders", keys)


def insert_malformed(site: Site) -> None:
    execute(
        site,
        f"INSERT INTO {site.tables.message} (service, topic, header_names)"
        f" VALUES ('g', '{site.topic('orders')}', ARRAY['a'])",
    )


def served(site: Site, **table: object) -> Service:
    """Start a relay, and wait until it has delivered and settled a message."""
    running = site.relay(extra=relay_settings(site, table))
    insert(site, "first")
    wait_empty(site)
    return running


def wait_halted(site: Site, relay: Service, words: str) -> None:
    """Wait until the source is halted, with some words in the reason."""
    wait_until(lambda: "Table source halted" in relay.output(), explain=site.logs)
    assert words in relay.output()


@pytest.mark.parametrize(
    ("table", "event", "words"),
    [
        ("message", "DELETE", "0 of 2 delivered rows were deleted"),
        ("delivered", "INSERT", "0 of 2 deleted rows got evidence"),
    ],
)
def test_a_trigger_that_suppresses_what_is_settled_halts_the_source(
    shop: Site, table: str, event: str, words: str
) -> None:
    _halts(shop, table, event, words)


def test_a_trigger_that_keeps_the_progress_halts_the_source(shop: Site) -> None:
    _halts(shop, "source", "UPDATE", "or a trigger or row security keeps it from being changed")


@pytest.mark.parametrize("column", ["batch", "delivered", "ids", "highest"])
def test_a_trigger_that_keeps_a_column_of_the_progress_halts_the_source(shop: Site, column: str) -> None:
    """Before the batch that is named is delivered; `delivered` is first written afterwards."""
    relay = served(shop)
    execute(
        shop,
        f"CREATE FUNCTION {shop.name}_keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.{column} = OLD.{column};"
        f" RETURN NEW; END'; CREATE TRIGGER keep BEFORE UPDATE ON {shop.tables.source} FOR EACH ROW"
        f" EXECUTE FUNCTION {shop.name}_keep()",
    )
    insert(shop, "one", "two")
    wait_halted(shop, relay, "0 of 1 rows of progress were written as named")
    assert len(shop.read("orders")) == (3 if column == "delivered" else 1)
    execute(shop, f"DROP FUNCTION {shop.name}_keep CASCADE")
    wait_empty(shop)
    assert_exactly(shop, "orders")


def _halts(shop: Site, table: str, event: str, words: str) -> None:
    relay = served(shop)
    name = getattr(shop.tables, table)
    execute(shop, KEEP.format(site=shop.name, event=event, table=name))
    insert(shop, "one", "two")
    wait_halted(shop, relay, words)
    execute(shop, f"DROP FUNCTION {shop.name}_keep CASCADE")
    wait_empty(shop)
    assert_exactly(shop, "orders")


@pytest.mark.parametrize(
    ("table", "event", "words"),
    [
        ("message", "DELETE", "0 of 1 rows that cannot be delivered were deleted"),
        ("discarded", "INSERT", "0 of 1 rows that cannot be delivered were kept as discarded"),
    ],
)
def test_what_cannot_be_delivered_and_stays_halts_the_source(shop: Site, table: str, event: str, words: str) -> None:
    relay = served(shop)
    execute(shop, KEEP.format(site=shop.name, event=event, table=getattr(shop.tables, table)))
    insert_malformed(shop)
    insert(shop, "behind")
    wait_halted(shop, relay, words)
    execute(shop, f"DROP FUNCTION {shop.name}_keep CASCADE")
    wait_empty(shop)
    assert_exactly(shop, "orders")
    with shop.connect() as connection:
        counted = connection.execute(f"SELECT count(*) FROM {shop.tables.discarded}".encode()).fetchone()
    assert counted == (1,)


@pytest.mark.parametrize(
    ("verb", "table", "event"),
    [("deliver", "message", "INSERT"), ("deliver", "discarded", "DELETE"), ("drop", "discarded", "DELETE")],
)
def test_discarded_rows_that_a_trigger_keeps_are_neither_lost_nor_called_gone(
    shop: Site, verb: str, table: str, event: str
) -> None:
    with shop.connect() as connection:
        connection.execute(
            f"INSERT INTO {shop.tables.discarded} (xid, id, created_at, service, topic, partition, reason,"
            f" detail) VALUES ('3', 1, now(), 'g', '{shop.topic('orders')}', -1, 'TOPIC_MISSING', 'why')".encode()
        )
    execute(shop, KEEP.format(site=shop.name, event=event, table=getattr(shop.tables, table)))
    settings = relay_settings(shop)
    code, printed = call_command(app, shop, verb, "--all", "--yes", environ=settings)
    assert (code, "Nothing was written" in printed) == (Exit.CONFIGURATION, True), printed
    with shop.connect() as connection:
        assert connection.execute(f"SELECT id FROM {shop.tables.discarded}".encode()).fetchall() == [(1,)]
    assert waiting(shop) == 0


def test_a_policy_that_appears_brings_nothing_twice(shop: Site) -> None:
    role, table = f"{shop.name}_relay", MessageTable(shop.tables)
    with shop.connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'relay'".encode())
        table.create(connection, [table.relay_grant(role)])
    relay = served(shop, dsn=make_conninfo(shop.postgres_url, user=role, password="relay"))
    execute(
        shop,
        f"ALTER TABLE {shop.tables.message} ENABLE ROW LEVEL SECURITY;"
        f" CREATE POLICY reading ON {shop.tables.message} FOR SELECT TO {role} USING (true)",
    )
    insert(shop, "one", "two")
    wait_until(lambda: "Table source halted" in relay.output() or "row-level" in relay.output(), explain=shop.logs)
    execute(shop, f"ALTER TABLE {shop.tables.message} DISABLE ROW LEVEL SECURITY")
    wait_empty(shop)
    assert_exactly(shop, "orders")


# --- upkeep


@pytest.fixture
def own_database(servers: Servers) -> Iterator[Site]:
    with Site(servers.bootstrap_servers, servers.postgres_url) as outside:
        execute(outside, f"CREATE DATABASE {outside.name}")
        url = make_conninfo(servers.postgres_url, dbname=outside.name)
        with Site(servers.bootstrap_servers, url) as made:
            made.create("orders", partitions=1)
            create(made)
            yield made
        execute(outside, f"DROP DATABASE {outside.name} WITH (FORCE)")


def evidence(site: Site) -> int:
    with site.connect() as connection:
        row = connection.execute(f"SELECT count(*) FROM {site.tables.delivered}".encode()).fetchone()
    return int(row[0]) if row else 0


def test_a_publication_of_all_tables_stops_neither_delivery_nor_purge(own_database: Site) -> None:
    execute(own_database, "CREATE PUBLICATION everything FOR ALL TABLES")
    served(own_database, keep_settled_ms=0)
    wait_until(lambda: evidence(own_database) == 0, explain=own_database.logs)
    insert(own_database, "one", "two")
    wait_empty(own_database)
    assert_exactly(own_database, "orders")


def test_upkeep_that_fails_stops_no_delivery(shop: Site) -> None:
    """It is one line, is counted, and is tried again."""
    role, table, port = f"{shop.name}_relay", MessageTable(shop.tables), free_port()
    with shop.connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'relay'".encode())
        table.create(connection, [table.relay_grant(role)])
    execute(shop, f"REVOKE DELETE ON {shop.tables.delivered} FROM {role}")
    dsn = make_conninfo(shop.postgres_url, user=role, password="relay")
    settings = relay_settings(shop, {"dsn": dsn, "keep_settled_ms": 0}, OUTBOX_HTTP_PORT=str(port))
    relay = shop.relay(extra=settings)
    failures = partial(metric, port, "outbox_relay_table_upkeep_failures_total", channel=shop.name, source=SOURCE)
    insert(shop, "one", "two")
    wait_empty(shop)
    assert_exactly(shop, "orders")
    wait_until(lambda: failures(work="purge") > 0, explain=shop.logs)
    assert relay.output().count("Upkeep of a table source failed") == 1
    execute(shop, f"GRANT DELETE ON {shop.tables.delivered} TO {role}")
    evidence = f"SELECT count(*) FROM {shop.tables.delivered}".encode()
    with shop.connect() as connection:
        wait_until(lambda: connection.execute(evidence).fetchone() == (0,), explain=shop.logs)
