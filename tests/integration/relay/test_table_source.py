"""Table sources: rows of a message table reach their real topics exactly once and in order (R55)."""

from __future__ import annotations

import json
import signal
import time
from functools import partial

import psycopg

from outbox._postgres.message_table import MessageTable
from outbox.protocol.identifiers import table_transaction_id
from relay.table.source_table import BELOW_SECONDS
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import (
    SOURCE,
    assert_delivered,
    assert_exactly,
    execute,
    insert,
    publish,
    relay_settings,
    source_table,
    wait_empty,
    waiting,
)
from tests.support.probes import free_port, metric, metrics

MISSING_TOPICS = 1_000


def relay(site: Site, failpoint: str = "", **more: str) -> Service:
    return site.relay(failpoint=failpoint, extra=relay_settings(site, **more))


def test_rows_become_records_with_the_ids_of_their_transaction(store: Site) -> None:
    names = store.tables
    with store.connect() as connection, connection.transaction():
        for number in range(2):
            connection.execute(
                f"INSERT INTO {names.message} (service, topic, partition, timestamp, key, value, header_names,"
                " header_values) VALUES ('orders', %s, 1, 1700000000000, %s, %s, %s, %s)".encode(),
                (store.topic("orders"), b"k\0", str(number).encode(), ["a", "a"], [b"1", None]),
            )
        rows = connection.execute(
            f"SELECT id, xid::text::bigint, CAST(extract(epoch FROM created_at) * 1000000 AS bigint)"
            f" FROM {names.message} ORDER BY id".encode()
        ).fetchall()
    relay(store)
    found = store.wait_visible(2, "orders")
    assert [one.message_id for one in found] == [f"{table_transaction_id(xid, us)}/{id_}" for id_, xid, us in rows]
    assert [(record.partition, record.key, record.value, record.timestamp) for record in found] == [
        (1, b"k\0", b"0", 1_700_000_000_000),
        (1, b"k\0", b"1", 1_700_000_000_000),
    ]
    headers = [header for header in found[0].headers if not header[0].startswith("outbox-message")]
    assert headers[:2] == [("a", b"1"), ("a", None)]
    assert (f"{SOURCE}/{rows[0][0]}").encode() in [value for _, value in found[0].headers]
    wait_empty(store)


def test_row_that_commits_long_after_higher_ids_is_delivered(store: Site) -> None:
    """The source reads from higher ids meanwhile (R62)."""
    port = free_port()
    relay(store, OUTBOX_HTTP_PORT=str(port))
    with psycopg.connect(store.postgres_url) as late:
        publish(late, store, "orders", ["late"])
        for number in range(30):
            insert(store, f"key{number}")
            time.sleep(0.1)
        store.wait_visible(30, "orders")
        late.commit()
    assert_delivered(store, BELOW_SECONDS / 3)
    seconds = partial(metric, port, channel=store.name, service="orders")
    assert seconds("outbox_relay_delivery_seconds_count") == 31
    assert seconds("outbox_relay_delivery_seconds_sum") > 3, "one was open for so long"


def test_a_relay_killed_after_its_commit_delivers_nothing_twice(store: Site) -> None:
    insert(store, "one", "two")
    assert relay(store, "relay.committed:2").wait() == -signal.SIGKILL  # the first one commits the progress alone
    assert waiting(store) == len(store.read("orders")) == 2
    relay(store)
    assert_delivered(store)


def test_a_large_transaction_stays_whole_and_keeps_the_order_of_its_keys(store: Site) -> None:
    """Its rows lie between those of others, and are more than one batch takes."""
    with psycopg.connect(store.postgres_url) as large:
        for number in range(300):
            publish(large, store, "orders", [f"large{number % 3}"])
            insert(store, f"small{number % 3}")
        relay(store)
        store.wait_visible(300, "orders")
        assert waiting(store) == 0
    store.wait_visible(600, "orders")
    assert_exactly(store, "orders")
    wait_empty(store)
    assert (
        execute(store, "SELECT xid FROM {delivered} AS b, {rows} GROUP BY xid HAVING count(DISTINCT batch) > 1") == []
    )


def test_many_missing_topics_do_not_hold_up_the_others(store: Site) -> None:
    """As an application may have that names a topic for each of its customers."""
    store.sql(
        f"INSERT INTO {store.tables.message} (service, topic) SELECT 'g', %s || n"
        f" FROM generate_series(1, {MISSING_TOPICS}) AS n",
        store.topic("missing"),
    )
    insert(store, "fine")
    relay(store, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="2000")
    store.wait_visible(1, "orders")
    insert(store, "later")
    store.wait_visible(2, "orders")
    wait_empty(store)
    counted = store.sql(f"SELECT reason, count(*) FROM {store.tables.discarded} GROUP BY 1")
    assert counted == [("TOPIC_MISSING", MISSING_TOPICS)]


def test_discarded_rows_are_in_a_gauge_until_somebody_decides(store: Site) -> None:
    port = free_port()
    allowed = {"orders": [store.topic("orders")]}
    relay(store, OUTBOX_ALLOWED_TOPICS=json.dumps(allowed), OUTBOX_HTTP_PORT=str(port))
    of_it = {"channel": store.name, "source": SOURCE, "state": "discarded"}
    gauge = partial(metric, port, "outbox_relay_table_rows", **of_it)
    insert(store, "fine")
    insert(store, "one", "two", "three", topic="forbidden")
    wait_until(lambda: gauge() == 3, explain=store.logs)
    assert metric(port, "outbox_relay_discards_total", reason="FORBIDDEN") == 1
    assert metric(port, "outbox_relay_discarded", kind="undeliverable") == 0
    execute(store, "DELETE FROM {discarded}")
    wait_until(lambda: gauge() == 0, explain=store.logs)
    assert ("outbox_relay_table_rows", frozenset(of_it.items())) in metrics(port)


def test_a_transaction_that_keeps_dead_rows_is_seen_by_a_role_that_sees_no_session(store: Site) -> None:
    role = store.role("relay", MessageTable(store.tables).relay_grant)
    with source_table(store, role) as table, store.connect() as other:
        other.execute("BEGIN; SELECT pg_current_xact_id()")
        insert(store, "one", "two")
        execute(store, "DELETE FROM {message}")

        def is_seen() -> bool:
            _, snapshot_seconds, *_, dead = table.figures() or [0] * 6
            return snapshot_seconds > 0 and dead >= 2

        wait_until(is_seen)
        other.execute("COMMIT")
        wait_until(lambda: (table.figures() or [1] * 6)[1] == 0)


def test_a_recreated_table_stops_the_source(store: Site) -> None:
    first = relay(store)
    insert(store, "one")
    store.wait_visible(1, "orders")
    execute(store, "DELETE FROM {source}")
    insert(store, "two")
    wait_until(lambda: "is no longer at batch" in first.output(), explain=store.logs)
    assert ("no restart is needed" in first.output(), "restart this relay" in first.output()) == (True, False)
    first.terminate()
    second = relay(store)
    wait_until(lambda: "outbox_source has lost its progress" in second.output(), explain=store.logs)
    execute(store, "DELETE FROM {delivered}")
    wait_until(lambda: "belongs to another table" in second.output(), explain=store.logs)


def test_a_table_has_one_name(store: Site) -> None:
    first = relay(store)
    insert(store, "one")
    store.wait_visible(1, "orders")
    first.terminate()
    variables = relay_settings(store)
    variables["OUTBOX_TABLES"] = variables["OUTBOX_TABLES"].replace(f'"{SOURCE}"', '"other"')
    second = store.relay(extra=variables)
    wait_until(lambda: "is delivered as source 'shop', not 'other'" in second.output(), explain=store.logs)
