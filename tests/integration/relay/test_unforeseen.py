"""An unforeseen error ends nothing but what it is about (R81)."""

from __future__ import annotations

import json

import pytest

from outbox._postgres.message_table import MessageTable
from outbox.settings import TableNames
from tests.integration.relay.test_halts import HALTED, publish, values
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create, insert_message, relay_settings, wait_empty
from tests.support.probes import free_port, get, metric

BAD = "bad"


@pytest.fixture
def shop(site: Site) -> Site:
    """A site with a message table and one real topic."""
    site.create("orders")
    create(site)
    return site


def run(site: Site, statement: str, prefix: str = "") -> list[tuple[object, ...]]:
    """Run a statement; `{message}` and `{discarded}` stand for tables."""
    names = TableNames("public", prefix) if prefix else site.tables
    with site.connect() as connection:
        done = connection.execute(statement.format(message=names.message, discarded=names.discarded).encode())
        return done.fetchall() if done.description else []


def insert(site: Site, value: str) -> None:
    """Publish a message in table mode."""
    with site.connect() as connection:
        insert_message(connection, site, "orders", "key", value)


def test_a_row_without_topic_or_group_is_a_dead_letter(shop: Site) -> None:
    """A schema that was changed by hand may have such rows; without a partition a row goes by its key."""
    for column in ("topic", "producer_group", "partition"):
        run(shop, f"ALTER TABLE {{message}} ALTER {column} DROP NOT NULL")
    topic = shop.topic("orders")
    for row in ("'orders', NULL, -1, NULL", f"NULL, '{topic}', -1, NULL", f"'orders', '{topic}', NULL, 'by key'"):
        run(shop, f"INSERT INTO {{message}} (producer_group, topic, partition, value) VALUES ({row})")
    insert(shop, "next")
    relay = shop.relay(extra=relay_settings(shop))
    wait_until(lambda: values(shop) == ["by key", "next"] or not relay.running, explain=shop.logs)
    assert relay.running, relay.output()
    wait_empty(shop)
    found = run(shop, "SELECT producer_group, topic, reason FROM {discarded} ORDER BY id")
    assert found == [("orders", "", "MALFORMED"), ("", topic, "MALFORMED")]


def test_an_unforeseen_error_halts_its_table_source_alone(shop: Site) -> None:
    """Another table source and the half partitions go on; it goes on when the cause is gone."""
    prefix = f"{shop.name}_{BAD}"
    with shop.connect() as connection:
        MessageTable(TableNames("public", prefix)).create(connection)
    run(shop, "ALTER TABLE {message} ALTER created_at DROP NOT NULL", prefix)
    row = f"('orders', '{shop.topic('orders')}', NULL)"
    run(shop, f"INSERT INTO {{message}} (producer_group, topic, created_at) VALUES {row}", prefix)
    tables = {BAD: {"dsn": shop.postgres_url, "table_prefix": prefix}}
    tables[SOURCE] = {"dsn": shop.postgres_url, "table_prefix": shop.name}
    port = free_port()
    relay = shop.relay(extra={"OUTBOX_TABLES": json.dumps(tables), "OUTBOX_HTTP_PORT": str(port)})
    wait_until(lambda: "Table source halted" in relay.output() or not relay.running, explain=shop.logs)
    insert(shop, "row")
    publish(shop, ["half"], 0)
    wait_until(lambda: values(shop) == ["half", "row"] or not relay.running, explain=shop.logs)
    assert relay.running, relay.output()
    code, text = get(port, "/readyz")
    assert (code, f"table source {BAD} is halted: " in text) == (503, True), text
    assert metric(port, "outbox_relay_table_halted", source=BAD) == 1
    assert metric(port, "outbox_relay_table_halted", source=SOURCE) == 0
    assert "Traceback" in relay.output()
    run(shop, "UPDATE {message} SET created_at = now()", prefix)
    wait_until(lambda: len(values(shop)) == 3, explain=shop.logs)
    wait_until(lambda: get(port, "/readyz")[0] == 200, explain=shop.logs)
    assert relay.output().count("Table source halted") == 1


@pytest.mark.long
def test_an_unforeseen_error_halts_its_half_partition_alone(shop: Site) -> None:
    """It is tried again after 30 s, and nothing is lost or doubled."""
    port = free_port()
    extra = relay_settings(shop, OUTBOX_HTTP_PORT=str(port))
    publish(shop, ["halted"], 0)
    relay = shop.relay(extra=extra, failpoint="relay.flushed:2:raise")  # the first one is of the table source
    wait_until(lambda: "Partition halted" in relay.output() or not relay.running, explain=shop.logs)
    wait_until(lambda: metric(port, HALTED) == 1 or not relay.running, explain=shop.logs)
    publish(shop, ["goes on"], 1)
    insert(shop, "row")
    wait_until(lambda: values(shop) == ["goes on", "row"] or not relay.running, explain=shop.logs)
    assert relay.running, relay.output()
    assert "partition 0 is halted: " in get(port, "/readyz")[1]
    assert "Traceback" in relay.output()
    wait_until(lambda: values(shop) == ["goes on", "halted", "row"], explain=shop.logs)
    shop.wait_settled()
    assert values(shop) == ["goes on", "halted", "row"]
