"""Foreign tables: rows that an application's own INSERT has made reach their real topics once and in order (R59)."""

import json
import re
import signal
import time
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox._postgres.foreign_source import ForeignSource
from outbox._rules.foreign_layout import QualifiedName
from outbox._settings.declared import TableSettings
from outbox.settings import TableNames
from outbox.testing import VisibleRecord, read_committed
from relay.table.foreign.foreign_table import ForeignTable
from relay.table.owned_table import open_session
from relay.table.rows import RowId
from tests.support.foreign_tables import KINDS, Kind, relay_settings, run, variables
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import SOURCE, Writers, assert_exactly, create_numbers, publish
from tests.support.probes import free_port, metric

PAGE = Path(__file__).parents[3] / "docs" / "foreign_tables.md"
DEBEZIUM = Kind("debezium", "uuid", "delete")
BIGINT = Kind("mapping", "bigint", "delete")
MARKED = Kind("mapping", "uuid", "mark")
FEW = [
    DEBEZIUM,
    pytest.param(Kind("mapping", "bigint", "mark"), marks=pytest.mark.long),
    pytest.param(Kind("mapping", "text", "delete"), marks=pytest.mark.long),
    MARKED,
]
"""Each layout, each type of id, and both ends of a row; the long test has all kinds."""


@pytest.fixture
def shop(site: Site) -> Site:
    site.create("orders", partitions=1)
    create_numbers(site)
    return site


def relay(site: Site, kind: Kind, failpoint: str = "", settings: dict[str, Any] | None = None, **more: str) -> Service:
    return site.relay(failpoint=failpoint, extra=relay_settings(kind.settings(site) | (settings or {}), **more))


def insert(site: Site, kind: Kind, topic: str, *keys: str) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        publish(connection, site, topic, keys, kind.insert)


def discarded(site: Site) -> list[tuple[str, str, str, str | None]]:
    return site.sql(f"SELECT row_id, reason, detail, content::text FROM {site.name}_discarded ORDER BY id")


@pytest.mark.parametrize("kind", FEW, ids=str)
def test_a_relay_killed_after_its_commit_delivers_nothing_twice(shop: Site, kind: Kind) -> None:
    kind.create(shop)
    insert(shop, kind, "orders", "one", "two")
    insert(shop, kind, "orders", "one")
    assert relay(shop, kind, "relay.committed:2").wait() == -signal.SIGKILL  # the first one commits the progress alone
    assert kind.waiting(shop) == len(shop.read("orders")) == 3
    insert(shop, kind, "orders", "one", "two")
    relay(shop, kind)
    kind.wait_empty(shop)
    assert_exactly(shop, "orders")


@pytest.mark.parametrize("kind", FEW, ids=str)
def test_rows_that_wait_are_found_by_whatever_a_header_has(shop: Site, kind: Kind) -> None:
    """The relay looks them up by the origin header of a record that a Kafka transaction left open (R31)."""
    kind.create(shop)
    insert(shop, kind, "orders", "one", "two")
    settings = TableSettings(**kind.settings(shop))
    with closing(ForeignTable(SOURCE, settings, open_session(settings))) as table:
        table.progress()
        first, second = (row.id for row in table.window(10, 1_000_000, ()).rows)
        assert isinstance(first, RowId)
        assert isinstance(second, RowId)
        strange = ["", "9" * 30, "x'", '"', "\\", "\0", "{}", str(uuid.uuid4())]
        assert table.transaction_ids([str(first), *strange]) == {str(first): {first.message}}
        assert table.transaction_ids([str(second)]) == {str(second): {second.message}}
        assert table.transaction_ids([]) == {}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_relay_killed_while_others_write_delivers_each_row_once_and_in_order(shop: Site, kind: Kind) -> None:
    kind.create(shop)
    with Writers.running(shop, "orders", kind.insert):
        for failpoint in ("relay.table_read:9", "relay.table_moved:5", "relay.committed:4", "relay.table_delivered:3"):
            assert relay(shop, kind, failpoint).wait() == -signal.SIGKILL
        relay(shop, kind)
        time.sleep(1.0)
    kind.wait_empty(shop)
    assert_exactly(shop, "orders")


def test_rows_of_debezium_are_routed_as_its_event_router_does(shop: Site) -> None:
    DEBEZIUM.create(shop)
    shop.create_named_topics(f"outbox.event.{shop.name}")
    table = DEBEZIUM.table(shop)
    payload = '{"b": 1, "a": "ä"}'
    ((id_,),) = shop.sql(
        f"INSERT INTO {table} (aggregatetype, aggregateid, type, payload) VALUES (%s, '42', 'Made', %s) RETURNING id",
        shop.name,
        payload,
    )
    shop.sql(f"INSERT INTO {table} (aggregatetype, aggregateid, type) VALUES (%s, '42', 'Gone')", shop.name)
    relay(shop, DEBEZIUM, settings={"topic": "", "additional_placement": "type:header:eventType,place:partition"})
    found: list[VisibleRecord] = []

    def both() -> bool:
        found[:] = read_committed(shop.kafka(), [f"outbox.event.{shop.name}"])
        return len(found) == 2

    wait_until(both, explain=shop.logs)
    first, second = sorted(found, key=lambda record: record.partition)
    stored = '{"a": "ä", "b": 1}'  # jsonb keeps no order of keys
    assert (first.partition, first.key, (first.value or b"").decode()) == (1, b"42", stored)
    assert first.headers[:2] == (("id", str(id_).encode()), ("eventType", b"Made"))
    assert first.message_id == f"{id_}/0"
    assert dict(first.headers)["outbox-origin"] == f"foreign:{SOURCE}/{id_}".encode()
    assert (second.partition, second.key, second.value) == (2, b"42", None)


def test_each_column_of_a_mapping_is_in_its_place(shop: Site) -> None:
    BIGINT.create(shop)
    shop.sql(
        f"INSERT INTO {BIGINT.table(shop)} (destination, about, body, extra, shard, happened_at, owner)"
        " VALUES ('orders', 'k', '\\x00ff', %s, 2, '2023-11-14 22:13:20.123+00', 'sales')",
        json.dumps({"a": "ö", "b": None}),
    )
    relay(shop, BIGINT)
    (found,) = shop.wait_visible(1, "orders")
    assert (found.partition, found.key, found.value, found.timestamp) == (2, b"k", b"\0\xff", 1_700_000_000_123)
    assert found.headers[:2] == (("a", "ö".encode()), ("b", None))
    assert dict(found.headers)["outbox-service"] == b"sales"


def test_a_broken_row_is_discarded_and_stops_no_other(shop: Site) -> None:
    BIGINT.create(shop)
    table = BIGINT.table(shop)
    with shop.connect() as connection:
        for column, value in (
            ("destination", "a b"),
            ("extra", "[]"),
            ("happened_at", "infinity"),
            ("shard", "-7"),
            ("owner", "a b"),
        ):
            row = {"destination": "orders", "about": "one", "owner": "orders", column: value}
            places = ", ".join(["%s"] * len(row))
            run(connection, f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", *row.values())
        run(connection, f"INSERT INTO {table} (about) VALUES ('one')")
    insert(shop, BIGINT, "orders", "one")
    port = free_port()
    relay(shop, BIGINT, OUTBOX_HTTP_PORT=str(port))
    BIGINT.wait_empty(shop)
    assert_exactly(shop, "orders")
    wait_until(
        lambda: metric(port, "outbox_relay_table_rows", source=SOURCE, state="discarded") == 6, explain=shop.logs
    )
    found = discarded(shop)
    assert [row_id for row_id, _, _, _ in found] == ["1", "2", "3", "4", "5", "6"]
    assert {reason for _, reason, _, _ in found} == {"MALFORMED"}
    assert json.loads(found[1][3] or "")["extra"] == []
    assert "headers are []" in found[1][2]


@pytest.mark.long
def test_a_discarded_row_of_a_marked_table_stays_in_it(shop: Site) -> None:
    MARKED.create(shop)
    insert(shop, MARKED, "nowhere", "one")
    service = relay(shop, MARKED, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="500")
    MARKED.wait_empty(shop)
    ((id_, reason, _, content),) = discarded(shop)
    assert (reason, content) == ("TOPIC_MISSING", None)
    shop.create_topics("nowhere")
    shop.sql(f"UPDATE {MARKED.table(shop)} SET sent = NULL WHERE event_id::text = %s", id_)
    (found,) = shop.wait_visible(1, "nowhere")
    assert found.message_id == f"{id_}/0"
    assert service.running


@pytest.mark.long
def test_a_row_too_large_to_be_read_stays_in_its_table(shop: Site) -> None:
    BIGINT.create(shop)
    table = BIGINT.table(shop)
    shop.sql(
        f"INSERT INTO {table} (destination, body, owner) SELECT 'orders', decode(repeat('00', 65000001), 'hex'), 'g'",
    )
    insert(shop, BIGINT, "orders", "one")
    service = relay(shop, BIGINT)
    shop.wait_visible(1, "orders")
    wait_until(lambda: BIGINT.waiting(shop) == 1, explain=shop.logs)
    assert "Row left in its table" in service.output()
    service.kill()
    again = relay(shop, BIGINT)
    wait_until(lambda: "Row left in its table" in again.output(), explain=shop.logs)
    insert(shop, BIGINT, "orders", "two")
    shop.wait_visible(2, "orders")
    ((id_, reason, detail, content),) = discarded(shop)  # once, so that `outbox pending` and `outbox doctor` have it
    assert (id_, reason, content) == ("1", "LEFT_IN_TABLE", None)
    assert "has more than 65,000,000 bytes" in detail


def test_copies_of_discarded_rows_are_deleted_by_age(shop: Site) -> None:
    BIGINT.create(shop)
    shop.sql(
        f"INSERT INTO {shop.name}_discarded (row_id, reason, detail, discarded_at) SELECT 1, reason, 'why',"
        " now() - interval '31 days' FROM unnest(ARRAY['LEFT_IN_TABLE', 'TOPIC_MISSING']) AS reason"
    )
    relay(shop, BIGINT)
    wait_until(lambda: [reason for _, reason, _, _ in discarded(shop)] == ["LEFT_IN_TABLE"], explain=shop.logs)


def test_a_unique_index_that_is_dropped_while_the_table_is_served_stops_it(shop: Site) -> None:
    """R59: without it a row with the id of a delivered one would be deleted unread."""
    BIGINT.create(shop)
    service = relay(shop, BIGINT)
    insert(shop, BIGINT, "orders", "one")
    shop.wait_visible(1, "orders")
    table = BIGINT.table(shop)
    shop.sql(f"ALTER TABLE {table} DROP CONSTRAINT {table.rpartition('.')[2]}_pkey")
    wait_until(lambda: "is not known to be unique" in service.output(), explain=shop.logs)


def test_rows_of_one_local_transaction_become_visible_together(shop: Site) -> None:
    """Its rows are between those of others, and are more than one batch takes."""
    BIGINT.create(shop)
    with psycopg.connect(shop.postgres_url) as large:
        for number in range(150):
            publish(large, shop, "orders", [f"large{number % 3}"], BIGINT.insert)
            insert(shop, BIGINT, "orders", f"small{number % 3}")
        relay(shop, BIGINT)
        shop.wait_visible(150, "orders")
        BIGINT.wait_empty(shop)  # a batch is deleted by the step after its delivery
    seen: set[int] = set()

    def all_visible() -> bool:
        keys = Counter(record.key for record in shop.read("orders"))
        counts = [keys[f"large{number}".encode()] for number in range(3)]
        seen.update(counts)
        return sum(counts) == 150

    wait_until(all_visible, explain=shop.logs)
    assert seen <= {0, 50}, "Kafka ends a transaction partition by partition: together is each key's messages"
    assert_exactly(shop, "orders")


def test_two_sources_never_deliver_one_table(shop: Site) -> None:
    BIGINT.create(shop)
    names = TableNames("public", f"{shop.name}_other")
    with shop.connect() as connection:
        ForeignSource(names, QualifiedName("public", BIGINT.table(shop))).create(connection)
    first = relay(shop, BIGINT)
    insert(shop, BIGINT, "orders", "one")
    shop.wait_visible(1, "orders")
    other = shop.relay(extra=variables({"other": {**BIGINT.settings(shop), "table_prefix": names.prefix}}))
    wait_until(lambda: "Relay started" in other.output(), explain=shop.logs)
    for _ in range(20):
        insert(shop, BIGINT, "orders", "one", "two")
        BIGINT.wait_empty(shop)
    assert_exactly(shop, "orders")
    assert "Table source taken over" not in other.output()
    first.terminate()
    insert(shop, BIGINT, "orders", "one")
    BIGINT.wait_empty(shop)
    assert_exactly(shop, "orders")


KEEPS = {
    BIGINT: "BEFORE DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_keep()",
    MARKED: "BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_keep()",
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KEEPS, ids=str)
def test_a_trigger_that_keeps_delivered_rows_stops_the_source(shop: Site, kind: Kind) -> None:
    kind.create(shop)
    table = kind.table(shop)
    body = "BEGIN IF TG_OP = 'DELETE' THEN RETURN NULL; END IF; NEW.sent = NULL; RETURN NEW; END"
    shop.sql(f"CREATE FUNCTION {table}_keep() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    shop.sql(f"CREATE TRIGGER keep {KEEPS[kind].format(table=table)}")
    insert(shop, kind, "orders", "one")
    service = relay(shop, kind)
    shop.wait_visible(1, "orders")
    wait_until(lambda: "Table source halted" in service.output(), explain=shop.logs)
    insert(shop, kind, "orders", "one")
    shop.sql(f"DROP TRIGGER keep ON {table}")
    kind.wait_empty(shop)
    assert_exactly(shop, "orders")


@pytest.mark.long
def test_a_trigger_that_suppresses_the_copy_of_a_discarded_row_stops_the_source(shop: Site) -> None:
    BIGINT.create(shop)
    insert(shop, BIGINT, "orders", "one")
    service = relay(shop, BIGINT)
    BIGINT.wait_empty(shop)
    body = "CREATE FUNCTION {0}_keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    shop.sql(body.format(shop.name))
    shop.sql(
        f"CREATE TRIGGER keep BEFORE INSERT ON {shop.name}_discarded FOR EACH ROW EXECUTE FUNCTION {shop.name}_keep()",
    )
    insert(shop, BIGINT, "no topic!", "one")
    wait_until(lambda: "Table source halted" in service.output(), explain=shop.logs)
    assert "0 of 1 rows that cannot be delivered were kept as discarded" in service.output()
    shop.sql(f"DROP FUNCTION {shop.name}_keep CASCADE")
    BIGINT.wait_empty(shop)
    assert [reason for _, reason, _, _ in discarded(shop)] == ["MALFORMED"]


BROKEN = {
    "missing": ("DROP TABLE {table}", "does not exist: nothing can be written"),
    "column": ("ALTER TABLE {table} DROP COLUMN body", "has no column 'body' (value)"),
    "unlogged": ("ALTER TABLE {table} SET UNLOGGED", "is not logged: a crash would empty it"),
    "progress": ("DROP TABLE {prefix}_source", "outbox table create"),
    "shape": ("ALTER TABLE {prefix}_source DROP COLUMN message_table", "lacks the columns message_table"),
    "other": (
        "INSERT INTO {prefix}_source (id, name, message_table) VALUES (0, 'other', 'public.other')",
        "is that of source 'other' and table public.other",
    ),
}


@pytest.mark.long
def test_a_table_that_does_not_fit_stops_its_source_alone(shop: Site) -> None:
    kinds = [kind for kind in KINDS if kind not in {BIGINT, DEBEZIUM}]
    tables = {SOURCE: BIGINT.settings(shop)}
    BIGINT.create(shop)
    for kind, (name, (change, _)) in zip(kinds, BROKEN.items(), strict=True):
        prefix = f"{shop.name}_{name}"
        kind.create(shop, prefix)
        tables[name] = {**kind.settings(shop), "table_prefix": prefix}
        shop.sql(change.format(table=kind.table(shop), prefix=prefix))
    insert(shop, BIGINT, "orders", "one")
    service = shop.relay(extra=variables(tables))
    shop.wait_visible(1, "orders")
    for _, error in BROKEN.values():
        wait_until(lambda error=error: error in service.output(), explain=shop.logs)  # type: ignore[misc]
    assert service.running


@pytest.mark.long
def test_a_discarded_row_of_a_table_without_marks_is_put_back_as_it_was(shop: Site) -> None:
    """The statement is that of docs/foreign_tables.md. JSON's null is no tombstone: its record has these four bytes."""
    DEBEZIUM.create(shop)
    table = DEBEZIUM.table(shop)
    payloads = [None, "null", '"null"', '{"a": [null, 1.50]}']
    into = f"INSERT INTO {table} (aggregatetype, aggregateid, type, payload) VALUES ('nowhere', 'k', 'T', %s)"
    for payload in payloads:
        shop.sql(f"{into} RETURNING 1", payload)
    relay(shop, DEBEZIUM, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="500")
    wait_until(lambda: len(discarded(shop)) == len(payloads), explain=shop.logs)
    shop.create_topics("nowhere", partitions=1)
    (statement,) = re.findall(r"-- deleted rows:[^\n]*\n(WITH back.*?;)", PAGE.read_text(), re.DOTALL)
    ids = [row_id for row_id, _, _, _ in discarded(shop)]
    shop.sql(statement.replace("events_discarded", f"{shop.name}_discarded").replace("outbox_events", table))
    found = shop.wait_visible(len(payloads), "nowhere")
    assert [record.value for record in found] == [payload and payload.encode() for payload in payloads]
    assert [record.message_id for record in found] == [f"{id_}/0" for id_ in ids]
