"""What a row of a message table unpacks to is bounded, and counts in the relay's memory (R68)."""

from __future__ import annotations

import psycopg
import pytest

from outbox._postgres.message_table import MessageTable
from outbox._settings.declared import TableSettings
from relay.table.owned_table import open_session
from relay.table.source_table import SourceTable
from tests.support.harness import Site

MEGABYTE = 1_000_000
HEADERS = 900_000
"""Bytes of the headers of one row, which Postgres keeps in about ten thousand."""


@pytest.fixture
def shop(site: Site) -> Site:
    with site.connect() as connection:
        MessageTable(site.tables).create(connection)
    return site


def _insert(site: Site, columns: str, values: str) -> None:
    statement = f"INSERT INTO {site.tables.message} (service, topic{columns}) {values}"
    with site.connect() as connection:
        connection.execute(statement.encode())


@pytest.mark.parametrize(
    "values",
    ["SELECT 'g', repeat('t', 250)", "SELECT repeat('g', 201), 't'", "SELECT repeat('g', 100000000), 't'"],
)
def test_names_are_bounded(shop: Site, values: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="outbox_bounds"):
        _insert(shop, "", values)


@pytest.mark.parametrize("time", ["'-infinity'", "'infinity'", "'1969-12-31 23:59+00'"])
def test_the_time_of_a_row_can_be_in_its_transaction_id(shop: Site, time: str) -> None:
    """Of another one the relay can make no id: its source would halt."""
    with pytest.raises(psycopg.errors.CheckViolation, match="outbox_bounds"):
        _insert(shop, ", created_at", f"SELECT 'g', 't', CAST({time} AS timestamptz)")


def test_headers_that_come_compressed_are_counted_unpacked(shop: Site) -> None:
    """As they are in another table of the application: 50 MB in half a megabyte."""
    with shop.connect() as connection:
        connection.execute(f"CREATE TABLE {shop.name}_bomb AS SELECT ARRAY[repeat('x', 50000000)] AS names".encode())
        size = connection.execute(f"SELECT pg_column_size(names) FROM {shop.name}_bomb".encode()).fetchone()
    assert size is not None
    assert size[0] < MEGABYTE
    with pytest.raises(psycopg.errors.CheckViolation, match="outbox_bounds"):
        _insert(shop, ", header_names", f"SELECT 'g', 't', names FROM {shop.name}_bomb")


def test_headers_count_in_the_window(shop: Site) -> None:
    """However well Postgres compresses them: the relay unpacks all rows of a window at once."""
    headers = f"ARRAY['h'], ARRAY[convert_to(repeat('x', {HEADERS}), 'UTF8')]"
    _insert(shop, ", header_names, header_values", f"SELECT 'g', 't', {headers} FROM generate_series(1, 40)")
    settings = TableSettings(dsn=shop.postgres_url, table_prefix=shop.name)
    with open_session(settings) as connection:
        window = SourceTable("shop", settings, connection).window(1_000, 10 * MEGABYTE, ())
    assert 1 <= len(window.rows) <= 10 * MEGABYTE // HEADERS
