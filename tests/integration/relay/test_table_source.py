"""Table sources: rows of a message table reach their real topics exactly once and in order (R55)."""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition

from outbox._postgres.message_table import MessageTable
from outbox.protocol.identifiers import table_transaction_id
from relay.table.id_floor import LOOK_SECONDS, WHOLE_SECONDS
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import (
    SOURCE,
    Writers,
    assert_exactly,
    create,
    publish,
    relay_settings,
    wait_empty,
    waiting,
)
from tests.support.probes import free_port, metric, metrics
from tests.support.table_failpoints import table_failpoints

MISSING_TOPICS = 1_000


@pytest.fixture
def shop(site: Site) -> Site:
    site.create("orders", partitions=1)
    create(site)
    return site


def relay(site: Site, failpoint: str = "", **more: str) -> Service:
    return site.relay(failpoint=failpoint, extra=relay_settings(site, **more))


def run(site: Site, statement: LiteralString) -> None:
    """Run one statement; `{message}` and so on stand for the tables."""
    with site.connect() as connection:
        connection.execute(MessageTable(site.tables).compose(statement))


def is_stopped(service: Service) -> bool:
    return Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def insert(site: Site, topic: str, *keys: str) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        publish(connection, site, topic, keys)


def test_rows_become_records_with_the_ids_of_their_transaction(shop: Site) -> None:
    names = shop.tables
    with shop.connect() as connection, connection.transaction():
        for number in range(2):
            connection.execute(
                f"INSERT INTO {names.message} (service, topic, partition, timestamp, key, value, header_names,"
                " header_values) VALUES ('orders', %s, 1, 1700000000000, %s, %s, %s, %s)".encode(),
                (shop.topic("orders"), b"k\0", str(number).encode(), ["a", "a"], [b"1", None]),
            )
        rows = connection.execute(
            f"SELECT id, xid::text::bigint, CAST(extract(epoch FROM created_at) * 1000000 AS bigint)"
            f" FROM {names.message} ORDER BY id".encode()
        ).fetchall()
    relay(shop)
    found = shop.wait_visible(2, "orders")
    assert [record.message_id for record in found] == [
        f"{table_transaction_id(xid, us)}/{id_}" for id_, xid, us in rows
    ]
    assert [(record.partition, record.key, record.value, record.timestamp) for record in found] == [
        (1, b"k\0", b"0", 1_700_000_000_000),
        (1, b"k\0", b"1", 1_700_000_000_000),
    ]
    headers = [header for header in found[0].headers if not header[0].startswith("outbox-message")]
    assert headers[:2] == [("a", b"1"), ("a", None)]
    assert (f"{SOURCE}/{rows[0][0]}").encode() in [value for _, value in found[0].headers]
    wait_empty(shop)


def test_row_that_commits_long_after_higher_ids_is_delivered(shop: Site) -> None:
    """The source reads from higher ids meanwhile, but not from beyond those of open transactions (R62)."""
    port = free_port()
    relay(shop, OUTBOX_HTTP_PORT=str(port))
    with psycopg.connect(shop.postgres_url) as late:
        publish(late, shop, "orders", ["late"])
        for number in range(30):
            insert(shop, "orders", f"key{number}")
            time.sleep(LOOK_SECONDS / 10)
        shop.wait_visible(30, "orders")
        late.commit()
    wait_empty(shop, WHOLE_SECONDS / 3)
    assert_exactly(shop, "orders")
    seconds = partial(metric, port, channel=shop.name, service="orders")
    assert seconds("outbox_relay_delivery_seconds_count") == 31
    assert seconds("outbox_relay_delivery_seconds_sum") > 30 * LOOK_SECONDS / 10, "one was open for so long"


def test_the_sql_function_returns_the_message_id(shop: Site) -> None:
    with shop.connect() as connection:
        row = connection.execute(
            f"SELECT {shop.tables.publish_function}('orders', %s, %s, key => '7', headers => %s)".encode(),
            (shop.topic("orders"), "ä", '{"a": "ö", "b": null}'),
        ).fetchone()
    relay(shop)
    (found,) = shop.wait_visible(1, "orders")
    assert (found.message_id,) == row
    assert (found.key, found.value) == (b"7", "ä".encode())
    assert [*found.headers[:2]] == [("a", "ö".encode()), ("b", None)]


@pytest.mark.long
@pytest.mark.parametrize("name", table_failpoints())
def test_a_relay_killed_at_each_step_delivers_each_row_once_and_in_order(shop: Site, name: str) -> None:
    with Writers.running(shop, "orders"):
        for hit in (1, 3):
            assert relay(shop, f"{name}:{hit if name != 'relay.table_taken_over' else 1}").wait() == -signal.SIGKILL
        relay(shop)
        time.sleep(1.0)
    wait_empty(shop)
    assert_exactly(shop, "orders")


def test_a_relay_killed_after_its_commit_delivers_nothing_twice(shop: Site) -> None:
    insert(shop, "orders", "one", "two")
    assert relay(shop, "relay.committed:2").wait() == -signal.SIGKILL  # the first one commits the progress alone
    assert waiting(shop) == len(shop.read("orders")) == 2
    relay(shop)
    wait_empty(shop)
    assert_exactly(shop, "orders")


@pytest.mark.long
def test_of_two_relays_the_other_takes_over(shop: Site) -> None:
    relays = [relay(shop), relay(shop)]
    with Writers.running(shop, "orders"):
        wait_until(lambda: len(shop.read("orders")) > 100, explain=shop.logs)
        wait_until(lambda: any("Table source taken over" in one.output() for one in relays))
        owner = next(one for one in relays if "Table source taken over" in one.output())
        owner.kill()
        before = len(shop.read("orders"))
        wait_until(lambda: len(shop.read("orders")) > before + 100, explain=shop.logs)
    wait_empty(shop)
    assert_exactly(shop, "orders")


@pytest.mark.long
def test_a_frozen_owner_is_fenced_when_it_wakes_up(shop: Site) -> None:
    with Writers.running(shop, "orders"):
        frozen = relay(shop, "relay.flushed:5:stop")
        wait_until(lambda: is_stopped(frozen))
        run(shop, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox-relay'")
        relay(shop)
        wait_until(lambda: len(shop.read("orders")) > 300, explain=shop.logs)
        frozen.process.send_signal(signal.SIGCONT)
        time.sleep(1.0)
    wait_empty(shop)
    assert_exactly(shop, "orders")


def test_a_large_transaction_stays_whole_and_keeps_the_order_of_its_keys(shop: Site) -> None:
    """Its rows lie between those of others, and are more than one batch takes."""
    with psycopg.connect(shop.postgres_url) as large:
        for number in range(300):
            publish(large, shop, "orders", [f"large{number % 3}"])
            insert(shop, "orders", f"small{number % 3}")
        relay(shop)
        shop.wait_visible(300, "orders")
        assert waiting(shop) == 0
    shop.wait_visible(600, "orders")
    assert_exactly(shop, "orders")


def test_a_missing_topic_holds_only_its_keys(shop: Site) -> None:
    relay(shop)
    insert(shop, "missing", "one")
    insert(shop, "orders", "one", "two")
    insert(shop, "orders", "three")
    assert [record.key for record in shop.wait_visible(1, "orders")] == [b"three"]
    shop.create_topics("missing")
    found = shop.wait_visible(3, "orders")
    assert {(record.key, record.value) for record in found} == {(b"one", b"2"), (b"two", b"1"), (b"three", b"1")}
    assert [record.value for record in shop.wait_visible(1, "missing")] == [b"1"]
    wait_empty(shop)


def test_many_missing_topics_do_not_hold_up_the_others(shop: Site) -> None:
    """As an application may have that names a topic for each of its customers."""
    with shop.connect() as connection:
        statement = (
            f"INSERT INTO {shop.tables.message} (service, topic) SELECT 'g', %s || n"
            f" FROM generate_series(1, {MISSING_TOPICS}) AS n"
        )
        connection.execute(statement.encode(), (shop.topic("missing"),))
    insert(shop, "orders", "fine")
    relay(shop, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="2000")
    shop.wait_visible(1, "orders")
    insert(shop, "orders", "later")
    shop.wait_visible(2, "orders")
    wait_empty(shop)
    with shop.connect() as connection:
        counted = connection.execute(f"SELECT reason, count(*) FROM {shop.tables.discarded} GROUP BY 1".encode())
        assert counted.fetchall() == [("TOPIC_MISSING", MISSING_TOPICS)]


def test_what_cannot_be_delivered_is_discarded_whole(shop: Site) -> None:
    with shop.connect() as connection, connection.transaction():
        publish(connection, shop, "orders", ["fine"])
        publish(connection, shop, "nowhere", ["lost"])
    with shop.connect() as connection:
        statement = f"INSERT INTO {shop.tables.message} (service, topic, header_names) VALUES ('g', %s, %s)"
        connection.execute(statement.encode(), (shop.topic("orders"), ["a"]))
    relay(shop, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="500")
    wait_empty(shop)
    with shop.connect() as connection:
        rows = connection.execute(
            f"SELECT key, reason, detail FROM {shop.tables.discarded} ORDER BY id".encode()
        ).fetchall()
    assert [(key, reason) for key, reason, _ in rows] == [
        (b"fine", "TOPIC_MISSING"),
        (b"lost", "TOPIC_MISSING"),
        (None, "MALFORMED"),
    ]
    assert rows[2][2] == "1 header names and 0 header values are given"
    assert not shop.read("orders")


def test_discarded_rows_are_in_a_gauge_until_somebody_decides(shop: Site) -> None:
    port = free_port()
    allowed = {"orders": [shop.topic("orders")]}
    relay(shop, OUTBOX_ALLOWED_TOPICS=json.dumps(allowed), OUTBOX_HTTP_PORT=str(port))
    of_it = {"channel": shop.name, "source": SOURCE, "state": "discarded"}
    gauge = partial(metric, port, "outbox_relay_table_rows", **of_it)
    insert(shop, "orders", "fine")
    insert(shop, "forbidden", "one", "two", "three")
    wait_until(lambda: gauge() == 3, explain=shop.logs)
    assert metric(port, "outbox_relay_discards_total", reason="FORBIDDEN") == 1
    assert metric(port, "outbox_relay_discarded", kind="undeliverable") == 0
    run(shop, "DELETE FROM {discarded}")
    wait_until(lambda: gauge() == 0, explain=shop.logs)
    assert ("outbox_relay_table_rows", frozenset(of_it.items())) in metrics(port)


def _committed(site: Site) -> int:
    service = site.channel.table_group(SOURCE)
    consumer = Consumer({**site.kafka(), "group.id": service, "isolation.level": "read_committed"})
    (place,) = consumer.committed([TopicPartition(site.channel.half_topic, 0)], 10)
    consumer.close()
    return int(place.offset)


def test_a_restored_database_stops_the_source_and_nothing_else(shop: Site) -> None:
    first = relay(shop)
    insert(shop, "orders", "one")
    shop.wait_visible(1, "orders")
    wait_empty(shop)
    first.terminate()
    assert _committed(shop) == 1
    run(shop, "UPDATE {source} SET batch = batch - 1, delivered = delivered - 1")
    second = relay(shop)
    insert(shop, "orders", "two")
    wait_until(lambda: "Table source halted" in second.output(), explain=shop.logs)
    assert "Kafka is at batch 1, the database at batch 0 with 0 delivered" in second.output()
    assert second.running
    assert len(shop.read("orders")) == 1
    run(shop, "UPDATE {source} SET batch = 1, delivered = 1")
    shop.wait_visible(2, "orders")


def test_a_recreated_table_stops_the_source(shop: Site) -> None:
    first = relay(shop)
    insert(shop, "orders", "one")
    shop.wait_visible(1, "orders")
    first.terminate()
    run(shop, "DELETE FROM {source}")
    second = relay(shop)
    wait_until(lambda: "outbox_source has lost its progress" in second.output(), explain=shop.logs)
    run(shop, "DELETE FROM {delivered}")
    wait_until(lambda: "belongs to another table" in second.output(), explain=shop.logs)


def test_a_table_has_one_name(shop: Site) -> None:
    first = relay(shop)
    insert(shop, "orders", "one")
    shop.wait_visible(1, "orders")
    first.terminate()
    variables = relay_settings(shop)
    variables["OUTBOX_TABLES"] = (variables["OUTBOX_TABLES"] or "").replace(f'"{SOURCE}"', '"other"')
    second = shop.relay(extra=variables)
    wait_until(lambda: "is delivered as source 'shop', not 'other'" in second.output(), explain=shop.logs)
