"""The strangers of the torture do hold what they say, and let it go."""

from collections.abc import Iterator

import psycopg
import pytest

from outbox._postgres.callback_table import CallbackTable
from outbox.settings import TableNames
from stack import postgres_alone
from tests.support.harness import wait_until
from tests.torture.strangers import connections_used_up, lock_table_full, locks

TABLES = TableNames("public", "outbox")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A database that strangers may use up, with the callback tables."""
    with postgres_alone({"max_connections": "10", "max_locks_per_transaction": "10"}) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            CallbackTable(TABLES).create(connection)
        yield server.url


def _may_lock(url: str, table: str) -> bool:
    try:
        with psycopg.connect(url, options="-c lock_timeout=100ms") as connection:
            connection.execute(f"UPDATE {table} SET {_COLUMNS[table]} = {_COLUMNS[table]}".encode())
    except psycopg.errors.LockNotAvailable:
        return False
    return True


_COLUMNS = {TABLES.transaction: "positions", TABLES.meta: "value", TABLES.fence: "written_at"}


@pytest.mark.parametrize("name", locks(TABLES))
def test_a_table_is_locked_for_everybody_else(url: str, name: str) -> None:
    way, table = locks(TABLES)[name]
    with way(url, table):
        assert not _may_lock(url, table)
    assert _may_lock(url, table)


def test_nobody_else_gets_a_connection(url: str) -> None:
    with connections_used_up(url), pytest.raises(psycopg.OperationalError, match="too many clients"):
        psycopg.connect(url)
    wait_until(lambda: _may_lock(url, TABLES.meta))


def test_nobody_else_gets_a_lock(url: str) -> None:
    with lock_table_full(url):
        assert not _may_take_many(url)
    wait_until(lambda: _may_take_many(url))


def _may_take_many(url: str) -> bool:
    many = "SELECT pg_advisory_xact_lock(number) FROM generate_series(1, 200) AS numbers (number)"
    try:
        with psycopg.connect(url) as connection:
            connection.execute(many)
    except psycopg.OperationalError as error:  # of the statement, or of the connection's own first look
        if "out of shared memory" in str(error):
            return False
        raise
    return True
