"""Evidence of delivered rows: it is exact, whenever the relay dies, and it is purged (R61)."""

from __future__ import annotations

import signal

import psycopg
import pytest

from outbox._postgres.publish_function import STARTED_US
from outbox.protocol.identifiers import message_id, table_transaction_id
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import Writers, assert_exactly, create, publish, relay_settings, wait_empty, waiting


@pytest.fixture
def shop(site: Site) -> Site:
    site.create("orders", partitions=1)
    create(site)
    return site


def relay(site: Site, failpoint: str = "", **table: object) -> Service:
    return site.relay(failpoint=failpoint, extra=relay_settings(site, table))


def insert(site: Site, *keys: str) -> None:
    with psycopg.connect(site.postgres_url) as connection:
        publish(connection, site, "orders", keys)


def evidence(site: Site) -> list[str]:
    """Return the message ids of which there is evidence, sorted."""
    query = (
        f"SELECT CAST(CAST(xid AS text) AS bigint), {STARTED_US}, id FROM {site.tables.delivered}, unnest(ids) AS run,"
        " generate_series(lower(run), upper(run) - 1) AS id"
    )
    with site.connect() as connection:
        rows = connection.execute(query.encode()).fetchall()
    return sorted(message_id(table_transaction_id(xid, started), id_) for xid, started, id_ in rows)


def visible(site: Site) -> list[str]:
    """Return the ids of visible messages, sorted."""
    return sorted(record.message_id for record in site.read("orders"))


def test_a_row_of_evidence_has_the_messages_of_one_transaction_on_one_topic(shop: Site) -> None:
    names = shop.tables
    shop.create_topics("stock")
    with psycopg.connect(shop.postgres_url) as connection:
        for topic, timestamp in (("orders", None), ("stock", 5), ("orders", 7), ("orders", 6)):
            connection.execute(
                f"INSERT INTO {names.message} (service, topic, timestamp) VALUES ('g', %s, %s)".encode(),
                (shop.topic(topic), timestamp),
            )
    relay(shop)
    wait_empty(shop)
    with shop.connect() as connection:
        rows = connection.execute(
            f"SELECT topic, ids::text, partition, service, earliest, batch, delivered_at > created_at"
            f" FROM {names.delivered} ORDER BY topic".encode()
        ).fetchall()
        (first,) = connection.execute(f"SELECT min(lower(ids)) FROM {names.delivered}".encode()).fetchone() or (0,)
    assert rows == [
        (shop.topic("orders"), f"{{[{first},{first + 1}),[{first + 2},{first + 4})}}", -1, "g", 6, 1, True),
        (shop.topic("stock"), f"{{[{first + 1},{first + 2})}}", -1, "g", 5, 1, True),
    ]


def test_a_relay_that_dies_after_it_deleted_rows_leaves_their_evidence(shop: Site) -> None:
    insert(shop, "one", "two")
    assert relay(shop, "relay.table_moved:2").wait() == -signal.SIGKILL  # the first one names the batch
    assert waiting(shop) == 0
    assert evidence(shop) == visible(shop)
    assert len(visible(shop)) == 2


@pytest.mark.long
def test_evidence_is_that_of_what_is_visible_whichever_owner_delivered_it(shop: Site) -> None:
    with Writers.running(shop, "orders"):
        for failpoint in ("relay.committed:3", "relay.flushed:3", "relay.table_moved:4"):
            assert relay(shop, failpoint).wait() == -signal.SIGKILL
        relay(shop)
    wait_empty(shop)
    assert_exactly(shop, "orders")
    assert evidence(shop) == visible(shop)


def test_old_evidence_is_purged_and_its_time_is_kept(shop: Site) -> None:
    source = shop.tables.source
    insert(shop, "one")
    keeping = relay(shop)
    wait_empty(shop)
    keeping.terminate()
    assert len(evidence(shop)) == 1
    relay(shop, keep_settled_ms=0)
    wait_until(lambda: evidence(shop) == [], explain=shop.logs)
    with shop.connect() as connection:
        row = connection.execute(f"SELECT purged_until < now(), delivered FROM {source}".encode()).fetchone()
    assert row == (True, 1)
