"""What a table source settles is counted: a difference halts it, and nothing comes twice (R71)."""

from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from outbox.operator.commands import resume
from outbox.operator.commands.discarded import app
from relay.table import owned_table
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Service, Site, other_database, wait_until
from tests.support.message_rows import (
    OFTEN,
    SOURCE,
    assert_delivered,
    create,
    execute,
    insert,
    plant_discarded,
    relay_settings,
    source_table,
    wait_empty,
    waiting,
)
from tests.support.probes import free_port, metric
from tests.support.servers import Servers


def trigger(site: Site, event: str, table: str, body: str = "RETURN NULL") -> None:
    execute(
        site,
        f"CREATE FUNCTION {site.name}_keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {body}; END';"
        f" CREATE TRIGGER keep {event} ON {table} FOR EACH ROW WHEN (pg_trigger_depth() = 0)"
        f" EXECUTE FUNCTION {site.name}_keep()",
    )


def insert_malformed(site: Site) -> None:
    values = f"VALUES ('g', '{site.topic('orders')}', ARRAY['a'])"
    execute(site, f"INSERT INTO {site.tables.message} (service, topic, header_names) {values}")


def served(site: Site, **table: object) -> Service:
    """Start a relay, and wait until it has delivered and settled a message."""
    site.constants["relay.table.source_threads.HALTED_SECONDS"] = 0.5
    running = site.relay(extra=relay_settings(site, table))
    insert(site, "first")
    wait_empty(site)
    return running


def wait_halted(site: Site, relay: Service, words: str) -> None:
    wait_until(lambda: "Table source halted" in relay.output(), explain=site.logs)
    assert words in relay.output()


@pytest.mark.parametrize(
    ("table", "event", "words"),
    [
        ("message", "DELETE", "0 of 2 delivered rows were deleted"),
        ("delivered", "INSERT", "0 of 2 deleted rows got evidence"),
        ("source", "UPDATE", "or a trigger or row security keeps it from being changed"),
    ],
)
def test_a_trigger_that_suppresses_what_is_settled_halts_the_source(
    store: Site, table: str, event: str, words: str
) -> None:
    relay = served(store)
    trigger(store, f"BEFORE {event}", getattr(store.tables, table))
    insert(store, "one", "two")
    wait_halted(store, relay, words)
    execute(store, f"DROP FUNCTION {store.name}_keep CASCADE")
    assert_delivered(store)


@pytest.mark.parametrize("column", ["batch", "delivered", "ids", "highest"])
def test_a_trigger_that_keeps_a_column_of_the_progress_halts_the_source(store: Site, column: str) -> None:
    """Before the batch that is named is delivered; `delivered` is first written afterwards."""
    relay = served(store)
    trigger(store, "BEFORE UPDATE", store.tables.source, f"NEW.{column} = OLD.{column}; RETURN NEW")
    insert(store, "one", "two")
    wait_halted(store, relay, "0 of 1 rows of progress were written as named")
    assert len(store.read("orders")) == (3 if column == "delivered" else 1)
    execute(store, f"DROP FUNCTION {store.name}_keep CASCADE")
    assert_delivered(store)


def test_a_halt_is_not_noted_where_a_trigger_would_change_more(store: Site) -> None:
    with source_table(store) as source:
        source.progress()
        source.note_halt("first")
        trigger(store, "BEFORE UPDATE", store.tables.source, "NEW.highest = 7; RETURN NEW")
        with pytest.raises(psycopg.Error, match="a trigger changes the progress"):
            source.note_halt("second")
    assert execute(store, "SELECT halted, highest FROM {source}") == [("first", 0)]


def test_a_trigger_that_empties_a_batch_halts_the_source_afterwards(store: Site) -> None:
    relay = served(store)
    table = store.tables.source
    empty = f"UPDATE public.{table} SET ids = DEFAULT, xids = DEFAULT, starts = DEFAULT; RETURN NULL"
    trigger(store, "AFTER UPDATE", table, empty)
    insert(store, "one", "two")
    wait_halted(store, relay, "it was changed or deleted")
    execute(store, f"DROP FUNCTION {store.name}_keep CASCADE")
    wait_until(lambda: "0 of 0 rows of batch 2, which Kafka has" in relay.output(), explain=store.logs)
    assert len(store.read("orders")) == 3
    words = ("--source", SOURCE, "--skip-delivered", "--yes")
    assert call_for_json(resume.app, store, *words, environ=relay_settings(store))[0] == Exit.OK
    assert_delivered(store)


@pytest.mark.parametrize(
    ("table", "event", "words"),
    [
        ("message", "DELETE", "0 of 1 rows that cannot be delivered were deleted"),
        ("discarded", "INSERT", "0 of 1 rows that cannot be delivered were kept as discarded"),
    ],
)
def test_what_cannot_be_delivered_and_stays_halts_the_source(store: Site, table: str, event: str, words: str) -> None:
    relay = served(store)
    trigger(store, f"BEFORE {event}", getattr(store.tables, table))
    insert_malformed(store)
    insert(store, "behind")
    wait_halted(store, relay, words)
    execute(store, f"DROP FUNCTION {store.name}_keep CASCADE")
    assert_delivered(store)
    assert store.sql(f"SELECT count(*) FROM {store.tables.discarded}") == [(1,)]


@pytest.mark.parametrize(
    ("verb", "table", "event"),
    [("deliver", "message", "INSERT"), ("deliver", "discarded", "DELETE"), ("drop", "discarded", "DELETE")],
)
def test_rows_that_a_trigger_keeps_are_not_called_gone(store: Site, verb: str, table: str, event: str) -> None:
    store.sql(
        f"INSERT INTO {store.tables.discarded} (xid, id, created_at, service, topic, partition, reason,"
        f" detail) VALUES ('3', 1, now(), 'g', '{store.topic('orders')}', -1, 'TOPIC_MISSING', 'why')"
    )
    trigger(store, f"BEFORE {event}", getattr(store.tables, table))
    settings = relay_settings(store)
    code, printed = call_command(app, store, verb, "--all", "--yes", environ=settings)
    assert (code, "Nothing was written" in printed) == (Exit.CONFIGURATION, True), printed
    assert store.sql(f"SELECT id FROM {store.tables.discarded}") == [(1,)]
    assert waiting(store) == 0


def test_a_policy_that_appears_brings_nothing_twice(store: Site) -> None:
    role = f"{store.name}_relay"
    relay = served(store, dsn=store.role("relay", MessageTable(store.tables).relay_grant))
    execute(
        store,
        f"ALTER TABLE {store.tables.message} ENABLE ROW LEVEL SECURITY;"
        f" CREATE POLICY reading ON {store.tables.message} FOR SELECT TO {role} USING (true)",
    )
    insert(store, "one", "two")
    wait_until(lambda: "Table source halted" in relay.output() or "row-level" in relay.output(), explain=store.logs)
    execute(store, f"ALTER TABLE {store.tables.message} DISABLE ROW LEVEL SECURITY")
    assert_delivered(store)


@pytest.fixture
def own_database(servers: Servers) -> Iterator[Site]:
    kafka = servers.bootstrap_servers
    with Site(kafka, servers.postgres_url) as outside, other_database(outside) as url, Site(kafka, url) as made:
        made.create("orders", partitions=1)
        create(made)
        made.constants |= OFTEN
        yield made


def evidence(site: Site) -> int:
    return int(site.sql(f"SELECT count(*) FROM {site.tables.delivered}")[0][0])


def test_a_publication_of_all_tables_stops_neither_delivery_nor_purge(own_database: Site) -> None:
    execute(own_database, "CREATE PUBLICATION everything FOR ALL TABLES")
    served(own_database, keep_settled_ms=0)
    wait_until(lambda: evidence(own_database) == 0, explain=own_database.logs)
    insert(own_database, "one", "two")
    assert_delivered(own_database)


def test_upkeep_that_fails_stops_no_delivery(store: Site) -> None:
    """It is one line, is counted, and is tried again."""
    store.constants |= OFTEN
    role, port = f"{store.name}_relay", free_port()
    dsn = store.role("relay", MessageTable(store.tables).relay_grant)
    execute(store, f"REVOKE DELETE ON {store.tables.delivered} FROM {role}")
    settings = relay_settings(store, {"dsn": dsn, "keep_settled_ms": 0}, OUTBOX_HTTP_PORT=str(port))
    relay = store.relay(extra=settings)
    failures = partial(metric, port, "outbox_relay_table_upkeep_failures_total", channel=store.name, source=SOURCE)
    insert(store, "one", "two")
    assert_delivered(store)
    wait_until(lambda: failures(work="purge") > 0, explain=store.logs)
    assert relay.output().count("Upkeep of a table source failed") == 1
    execute(store, f"GRANT DELETE ON {store.tables.delivered} TO {role}")
    wait_until(lambda: store.sql(f"SELECT FROM {store.tables.delivered}") == [], explain=store.logs)


def test_figures_that_cannot_be_read_stop_no_delivery(store: Site) -> None:
    """Nor do they wait for a lock, and the source keeps its owner."""
    store.constants |= OFTEN
    port = free_port()
    relay = store.relay(extra=relay_settings(store, OUTBOX_HTTP_PORT=str(port)))
    insert(store, "one")
    wait_empty(store)
    failures = partial(metric, port, "outbox_relay_table_upkeep_failures_total", channel=store.name, source=SOURCE)
    with store.connect() as locker, locker.transaction():
        locker.execute(f"LOCK TABLE {store.tables.discarded} IN ACCESS EXCLUSIVE MODE".encode())
        wait_until(lambda: failures(work="figures") > 0, explain=store.logs)
    insert(store, "two")
    assert_delivered(store)
    assert "Table source not served yet" not in relay.output()


def kept(site: Site) -> list[str]:
    return [bytes(key).decode() for (key,) in site.sql(f"SELECT key FROM {site.tables.discarded} ORDER BY id")]


def test_transactions_are_deleted_by_age_and_whole(store: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_table, "AT_ONCE", 2)
    plant_discarded(store, "a", days=32)
    plant_discarded(store, "b", "c", "d", days=31)
    plant_discarded(store, "e", "f", days=29)
    with source_table(store) as source:
        assert source.expire()
        assert kept(store) == ["e", "f"]
        assert not source.expire()


def test_old_dead_letters_of_which_one_stays_all_stay(store: Site) -> None:
    plant_discarded(store, "a", "b", days=31)
    trigger(store, "BEFORE DELETE", store.tables.discarded, "IF OLD.key = ''a'' THEN RETURN NULL; END IF; RETURN OLD")
    with source_table(store) as source:
        assert not source.expire()
    assert kept(store) == ["a", "b"]


def test_old_dead_letters_are_shown_before_they_are_deleted(store: Site) -> None:
    store.constants |= OFTEN
    plant_discarded(store, "old", "old2", days=31)
    plant_discarded(store, "soon", days=25)
    plant_discarded(store, "new", days=1)
    dsn, port = store.role("relay", MessageTable(store.tables).relay_grant), free_port()
    relay = store.relay(extra=relay_settings(store, {"dsn": dsn}, OUTBOX_HTTP_PORT=str(port)))
    wait_until(lambda: kept(store) == ["soon", "new"], explain=store.logs)
    rows = partial(metric, port, "outbox_relay_table_rows", channel=store.name, source=SOURCE)
    wait_until(lambda: (rows(state="discarded"), rows(state="expiring")) == (2, 1), explain=store.logs)
    assert metric(port, "outbox_relay_events_total", channel=store.name, kind="expired") == 2
    assert "Discarded messages deleted by age" in relay.output()
