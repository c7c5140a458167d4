"""Evidence of delivered rows: it is exact, whenever the relay dies, and it is purged (R61)."""

import signal
from collections.abc import Iterator, Mapping, Sequence

import psycopg

from outbox import Outbox
from outbox.protocol.identifiers import message_id, table_transaction_id
from outbox.transaction import Outcome
from relay.table.rows import EPOCH_US, Row
from tests.support.harness import Service, Site, wait_until
from tests.support.message_rows import execute, insert, relay_settings, source_table, wait_empty, waiting


def relay(site: Site, failpoint: str = "", **table: object) -> Service:
    return site.relay(failpoint=failpoint, extra=relay_settings(site, table))


def evidence(site: Site) -> list[str]:
    rows = execute(site, "SELECT xid::text::bigint, {started}, r.id FROM {delivered} AS b, {rows}")
    return sorted(message_id(table_transaction_id(xid, started), id_) for xid, started, id_ in rows)


def visible(site: Site) -> list[str]:
    return sorted(record.message_id for record in site.read("orders"))


def test_evidence_has_the_transaction_and_the_target_of_each_message_of_a_batch(store: Site) -> None:
    names = store.tables
    store.create_topics("stock")
    with psycopg.connect(store.postgres_url) as connection:
        for topic, timestamp in (("orders", None), ("stock", 5), ("orders", 7), ("orders", 6)):
            connection.execute(
                f"INSERT INTO {names.message} (service, topic, timestamp) VALUES ('g', %s, %s)".encode(),
                (store.topic(topic), timestamp),
            )
        (xid, started) = connection.execute("SELECT pg_current_xact_id()::text, now()").fetchone() or ("", None)
    relay(store)
    wait_empty(store)
    found = execute(
        store,
        "SELECT xids::text[], starts, xid_range::text, targets, services, topics, partitions, earliest, batch,"
        " first_id = lower(ids) AND upper(ids) = first_id + 4, delivered_at > starts[1] FROM {delivered}",
    )
    topics = [store.topic("orders"), store.topic("stock")]
    span = f"[{xid},{int(xid) + 1})"
    about = [1, 2, 1, 1], ["g", "g"], topics, [-1, -1], [6, 5]
    assert found == [([xid] * 4, [started] * 4, span, *about, 1, True, True)]


def test_a_relay_that_dies_after_it_deleted_rows_leaves_their_evidence(store: Site) -> None:
    insert(store, "one", "two")
    assert relay(store, "relay.table_moved:2").wait() == -signal.SIGKILL  # the first one names the batch
    assert waiting(store) == 0
    assert evidence(store) == visible(store)
    assert len(visible(store)) == 2


def test_on_another_server_a_transaction_without_evidence_is_not_called_rolled_back(store: Site) -> None:
    """There its xid is another transaction's, or none's: as after a dump that left evidence out (R74)."""
    first = relay(store)
    insert(store, "one")
    wait_empty(store)
    ((xid, now),) = store.sql("SELECT pg_current_xact_id()::text, extract(epoch FROM now()) * 1000000")
    absent = table_transaction_id(int(xid) + 1000, int(now))
    with Outbox("g", tables=store.tables) as outbox, store.connect() as connection:
        assert outbox.outcome(absent, connection) is Outcome.ROLLED_BACK
        first.terminate()
        store.sql(f"UPDATE {store.tables.source} SET server = 1")
        relay(store)
        wait_until(lambda: store.sql(f"SELECT server FROM {store.tables.source}") != [(1,)], explain=store.logs)
        assert outbox.outcome(absent, connection) is Outcome.TOO_OLD


def test_old_evidence_is_purged_and_its_time_is_kept(store: Site) -> None:
    source = store.tables.source
    insert(store, "one")
    keeping = relay(store)
    wait_empty(store)
    keeping.terminate()
    assert len(evidence(store)) == 1
    relay(store, keep_settled_ms=0)
    wait_until(lambda: evidence(store) == [], explain=store.logs)
    assert store.sql(f"SELECT purged_until < now(), delivered FROM {source}") == [(True, 1)]


MEGABYTE = 1_000_000
HEADERS = 900_000
"""Bytes of the headers of one row, which Postgres keeps in about ten thousand."""


def _insert(site: Site, columns: Mapping[str, str], source: str = "") -> None:
    given = {"service": "'g'", "topic": "'t'", **columns}
    site.sql(f"INSERT INTO {site.tables.message} ({', '.join(given)}) SELECT {', '.join(given.values())} {source}")


def _windows(site: Site) -> Iterator[Sequence[Row]]:
    with source_table(site) as source:
        while rows := (window := source.window(1_000, 10 * MEGABYTE, ())).rows:
            yield rows
            source.take(window, len(rows))


BEYOND: Sequence[Mapping[str, str]] = [
    {"topic": "repeat('t', 250)"},
    {"service": "repeat('g', 201)"},
    {"service": "repeat('g', 2000000)"},
    {"key": "'k'", "value": "convert_to(repeat('x', 64000000), 'UTF8')"},
    {"header_names": "ARRAY['h']", "header_values": "ARRAY[convert_to(repeat('x', 1100000), 'UTF8')]"},
    {"header_names": "(SELECT names FROM {bomb})"},
    *({"created_at": f"timestamptz '{time}'"} for time in ("-infinity", "infinity", "1969-12-31 23:59+00")),
]
"""Rows that `publish()` never makes. Of a time that is not in the calendar no transaction id can be made."""

KEPT = "id, key, octet_length(value), pg_column_size(header_names), pg_column_size(header_values)"


def test_nothing_is_read_of_rows_beyond_the_bounds_and_they_stop_no_other(store: Site) -> None:
    """Also of headers that come compressed, as from another table of the application: 50 MB in half a megabyte."""
    store.sql(f"CREATE TABLE {store.name}_bomb AS SELECT ARRAY[repeat('x', 50000000)] AS names")
    if store.sql("SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]:
        execute(store, "ALTER TABLE {message} ADD bad int GENERATED ALWAYS AS (1 / (partition + 1)) VIRTUAL")
    for columns in BEYOND:
        _insert(store, {column: text.format(bomb=f"{store.name}_bomb") for column, text in columns.items()})
    whole = store.sql(f"SELECT {KEPT} FROM {store.tables.message} ORDER BY id")
    read = [row for rows in _windows(store) for row in rows]
    assert [(row[1], row[5], *row[7:11]) for row in read] == [(id_, *[None] * 5) for id_, *_ in whole]
    assert all(table_transaction_id(1, row[2] + EPOCH_US) for row in read)
    insert(store, "one")
    relay(store)
    assert [record.key for record in store.wait_visible(1, "orders")] == [b"one"]
    wait_empty(store)
    about = "reason, octet_length(service) <= 200 AND octet_length(topic) <= 249 AND isfinite(created_at)"
    found = store.sql(f"SELECT {KEPT}, {about} FROM {store.tables.discarded} ORDER BY id")
    assert found == [(*row, "MALFORMED", True) for row in whole]


def test_headers_count_in_the_window(store: Site) -> None:
    """However well Postgres compresses them: the relay unpacks all rows of a window at once."""
    headers = {"header_names": "ARRAY['h']", "header_values": f"ARRAY[convert_to(repeat('x', {HEADERS}), 'UTF8')]"}
    _insert(store, headers, "FROM generate_series(1, 40)")
    assert 1 <= len(next(_windows(store))) <= 10 * MEGABYTE // HEADERS
