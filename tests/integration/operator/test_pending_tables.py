"""`outbox pending`: rows of message tables, since when they wait, and why."""

import json
from typing import Any

import psycopg
import pytest

from outbox._service.exit_codes import Exit
from outbox.operator.commands.pending import app
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, publish, relay_settings


def _insert(site: Site, *messages: tuple[str, str]) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        for topic, key in messages:
            publish(connection, site, topic, [key])


def _table(site: Site, code: int = Exit.OK, **more: str | None) -> Any:
    found, document = call_for_json(app, site, environ={**relay_settings(site), **more})
    assert found == code
    (table,) = document["tables"]
    return table


def test_rows_are_counted_with_the_reasons_why_they_wait(store: Site) -> None:
    _insert(store, ("nowhere", "a"), ("orders", "b"))
    _insert(store, ("orders", "b"))
    _insert(store, ("orders", "c"))
    table = _table(store)
    assert (table["source"], table["condition"], table["rows"], table["batch"]) == (SOURCE, "no owner", 4, None)
    assert table["age_ms"] >= 0
    assert {(one["topic"].rpartition(".")[2], one["reason"], one["rows"]) for one in table["waiting"]} == {
        ("nowhere", "TOPIC_MISSING", 1),
        ("orders", "SAME_TRANSACTION", 1),
        ("orders", "SAME_KEY", 1),
        ("orders", "NEXT", 1),
    }
    printed = call_command(app, store, environ=relay_settings(store))[1]
    assert f"table source {SOURCE}: no owner" in printed
    assert "4 rows, the oldest" in printed
    assert "TOPIC_MISSING: topic" in printed


def test_a_served_source_has_an_owner_and_numbers_that_fit(store: Site) -> None:
    store.relay(extra=relay_settings(store, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="500"))
    _insert(store, ("orders", "a"))
    store.wait_visible(1, "orders")
    _insert(store, ("nowhere", "a"))
    wait_until(lambda: _table(store)["discarded"] != {}, explain=store.logs)
    table = _table(store)
    assert (table["condition"], table["why"], table["rows"]) == ("served", None, 0)
    assert table["owner_pid"] > 0
    printed = call_command(app, store, environ=relay_settings(store))[1]
    owner = f"served by database session {table['owner_pid']}"
    assert f"channel {store.name}, table source {SOURCE}: {owner}" in printed
    assert (table["batch"], table["delivered"], table["kafka_batch"]) == (1, 1, 1)
    assert table["discarded"] == {"TOPIC_MISSING": 1}
    store.sql(f"UPDATE {store.tables.source} SET batch = 0, delivered = 0")
    wait_until(lambda: _table(store)["condition"] == "halted", explain=store.logs)
    assert "Kafka is at batch 1, the database at batch 0" in _table(store)["why"]


def test_a_source_whose_table_breaks_its_contract_is_halted(store: Site) -> None:
    """Also after a restart of the relay, or without one: the command looks for itself (R75)."""
    _insert(store, ("orders", "a"))
    store.sql(f"ALTER TABLE {store.tables.message} SET UNLOGGED")
    table = _table(store)
    assert (table["condition"], table["rows"]) == ("halted", 1)
    assert "is not logged: a crash would empty it" in table["why"]
    assert "waits for a relay" not in call_command(app, store, environ=relay_settings(store))[1]
    store.sql(f"ALTER TABLE {store.tables.message} RENAME TO {store.name}_was")
    assert f"{store.tables.message} does not exist" in _table(store, Exit.UNPROVABLE)["why"]


def test_a_source_that_its_owner_halted_is_shown_with_the_cause(store: Site) -> None:
    """R81: whatever the cause is; until an owner serves it."""
    _insert(store, ("orders", "a"))
    store.relay(extra=relay_settings(store), failpoint="relay.table_delivered:1:raise")
    wait_until(lambda: _table(store)["condition"] == "halted", explain=store.logs)
    assert "unforeseen error" in _table(store)["why"]
    wait_until(lambda: _table(store)["condition"] == "served", explain=store.logs)
    assert _table(store)["why"] is None


@pytest.mark.long
def test_rows_are_shown_though_kafka_is_down(store: Site) -> None:
    _insert(store, ("orders", "a"))
    down = {**relay_settings(store), "OUTBOX_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    code, printed = call_command(app, store, environ=down)
    assert code == Exit.CONFIGURATION
    assert "1 row, the oldest" in printed
    assert "NOT_KNOWN: its topic could not be looked at" in printed
    unread = [line for line in printed.splitlines() if "not read" in line]
    assert [line.rpartition(": ")[2] for line in unread] == ["Kafka does not answer"] * 2
    store.sql(f"INSERT INTO {store.tables.source} (id, name, batch) VALUES (0, '{SOURCE}', 3)")
    printed = call_command(app, store, environ=down)[1]
    assert "batch 3, delivered 0, Kafka's batch is not known" in printed


def test_a_database_that_does_not_answer_is_named_beside_the_others(store: Site) -> None:
    tables = json.loads(relay_settings(store)["OUTBOX_TABLES"])
    tables["away"] = {"dsn": "postgresql://nobody:secret@127.0.0.1:1/none"}
    code, document = call_for_json(app, store, environ={"OUTBOX_TABLES": json.dumps(tables)})
    assert code == Exit.UNPROVABLE
    assert [one["condition"] for one in document["tables"]] == ["no owner", "unreachable"]
    assert "cannot be asked: connection failed" in document["tables"][1]["why"]
    assert "secret" not in json.dumps(document)


def test_a_table_of_another_name_is_named(store: Site) -> None:
    store.sql(f"INSERT INTO {store.tables.source} (id, name) VALUES (0, 'other')")
    assert "delivered as source 'other'" in _table(store, Exit.UNPROVABLE)["not_read"][0]
