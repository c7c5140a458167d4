"""An unforeseen error ends nothing but what it is about (R81)."""

import json
from functools import partial

import pytest

from outbox._postgres.message_table import MessageTable
from outbox.protocol.discard import DiscardReason
from outbox.settings import TableNames
from relay.delivery.rules.outgoing import Finding
from relay.table.row_transactions import transactions
from tests.integration.relay.test_halts import publish, values
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, create, insert_message, relay_settings, source_table
from tests.support.probes import free_port, get, metric

BAD = "bad"


@pytest.fixture
def shop(site: Site) -> Site:
    site.create("orders")
    create(site)
    return site


def run(site: Site, statement: str, prefix: str = "") -> list[tuple[object, ...]]:
    names = TableNames("public", prefix) if prefix else site.tables
    return site.sql(statement.format(message=names.message, discarded=names.discarded))


def insert(site: Site, value: str) -> None:
    with site.connect() as connection:
        insert_message(connection, site, "orders", "key", value)


LOST = ("topic", "service", "partition")
"""Columns whose NOT NULL was dropped by hand."""


def test_a_row_without_topic_or_service_is_no_message_and_fails_no_statement(shop: Site) -> None:
    """Until the contract of the table is looked at again such rows are met; without a partition one goes by its key."""
    for column in LOST:
        run(shop, f"ALTER TABLE {{message}} ALTER {column} DROP NOT NULL")
    for row in ("'orders', NULL, -1", "NULL, 'orders', -1", "'orders', 'orders', NULL"):
        run(shop, f"INSERT INTO {{message}} (service, topic, partition) VALUES ({row})")
    with source_table(shop) as source:
        progress, window = source.progress(), source.window(10, 10_000, ())
        found = transactions(window.rows)
        assert [message.error for one in found for message in one.messages] == [
            "topic '' is not a topic name",
            "service '' is not allowed: use 1 to 200 letters, digits, '.', '_' and '-'",
            "",
        ]
        source.move(progress, progress, (), [(one, Finding(DiscardReason.MALFORMED, "why")) for one in found[:2]])
    discarded = run(shop, "SELECT service, topic, reason FROM {discarded} ORDER BY id")
    assert discarded == [("orders", "", "MALFORMED"), ("", "orders", "MALFORMED")]


def test_a_table_that_lost_not_null_halts_its_source_alone(shop: Site) -> None:
    """It goes on once the table is as it was."""
    run(shop, "ALTER TABLE {message} ALTER topic DROP NOT NULL")
    run(shop, "INSERT INTO {message} (service) VALUES ('orders')")
    insert(shop, "row")
    relay = shop.relay(extra=relay_settings(shop))
    wait_until(lambda: "lacks the columns topic text NOT NULL" in relay.output(), explain=shop.logs)
    publish(shop, ["half"], 0)
    wait_until(lambda: values(shop) == ["half"] or not relay.running, explain=shop.logs)
    assert relay.running, relay.output()
    run(shop, "DELETE FROM {message} WHERE topic IS NULL")
    run(shop, "ALTER TABLE {message} ALTER topic SET NOT NULL")
    wait_until(lambda: values(shop) == ["half", "row"], explain=shop.logs)


def test_an_unforeseen_error_halts_its_table_source_alone(shop: Site) -> None:
    """Another table source and the half partitions go on; it is tried again, and nothing is lost or doubled."""
    prefix = f"{shop.name}_{BAD}"
    with shop.connect() as connection:
        MessageTable(TableNames("public", prefix)).create(connection)
    run(shop, f"INSERT INTO {{message}} (service, topic) VALUES ('orders', '{shop.topic('orders')}')", prefix)
    tables = {BAD: {"dsn": shop.postgres_url, "table_prefix": prefix}}
    tables[SOURCE] = {"dsn": shop.postgres_url, "table_prefix": shop.name}
    port = free_port()
    extra = {"OUTBOX_TABLES": json.dumps(tables), "OUTBOX_HTTP_PORT": str(port)}
    relay = shop.relay(extra=extra, failpoint="relay.table_delivered:1:raise")
    wait_until(lambda: "Table source halted" in relay.output() or not relay.running, explain=shop.logs)
    insert(shop, "row")
    publish(shop, ["half"], 0)
    wait_until(lambda: len(values(shop)) == 3 or not relay.running, explain=shop.logs)
    assert relay.running, relay.output()
    assert f'"source": "{BAD}", "reason": "unforeseen error' in relay.output()
    assert "Traceback" in relay.output()
    wait_until(lambda: get(port, "/readyz")[0] == 200, explain=shop.logs)
    assert metric(port, "outbox_relay_table_sources", source=BAD, state="halted") == 0
    assert run(shop, "SELECT count(*) FROM {message}", prefix) == [(0,)]
    assert len(values(shop)) == 3


@pytest.mark.long
def test_an_unforeseen_error_halts_its_half_partition_alone(shop: Site) -> None:
    """It is tried again after 30 s, and nothing is lost or doubled."""
    port = free_port()
    extra = relay_settings(shop, OUTBOX_HTTP_PORT=str(port))
    publish(shop, ["halted"], 0)
    relay = shop.relay(extra=extra, failpoint="relay.flushed:2:raise")  # the first one is of the table source
    wait_until(lambda: "Partition halted" in relay.output() or not relay.running, explain=shop.logs)
    halted = partial(metric, port, "outbox_relay_partitions", state="halted")
    wait_until(lambda: halted() == 1 or not relay.running, explain=shop.logs)
    publish(shop, ["goes on"], 1)
    insert(shop, "row")
    wait_until(lambda: values(shop) == ["goes on", "row"] or not relay.running, explain=shop.logs)
    assert relay.running, relay.output()
    assert "partition 0 is halted: " in get(port, "/readyz")[1]
    assert "Traceback" in relay.output()
    wait_until(lambda: values(shop) == ["goes on", "halted", "row"], explain=shop.logs)
    shop.wait_settled()
    assert values(shop) == ["goes on", "halted", "row"]
