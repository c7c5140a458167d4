"""What others do on the applications' database: they hold something that everybody needs, and let it go."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import psycopg

from outbox.settings import TableNames

CONNECT_SECONDS = 3
LOCK_WAIT = "10s"
"""A stranger gives up if somebody else was first for so long: a stopped application may hold what he wants."""

_MORE_THAN_ANY_TABLE_HOLDS = 1_000_000

_AWAY = ("57P", "08", "53", "55P03", "40P01")
"""SQLSTATEs, or their beginnings: the server ends, starts, or has no connection or memory left; a lock was taken."""


def is_away(error: Exception) -> bool:
    """Whether other faults explain an error: a lost server or connection, or a lock; all else is a finding."""
    lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    return lost and (getattr(error, "sqlstate", None) or "08").startswith(_AWAY)


@contextmanager
def table_locked(url: str, name: str) -> Iterator[None]:
    """A migration has locked a table: nobody reads or writes it. While it waits for its lock, nobody does either."""
    with _transaction(url) as connection:
        connection.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE".encode())
        yield


@contextmanager
def rows_locked(url: str, name: str) -> Iterator[None]:
    """Somebody is about to change all rows of a table: nobody else can."""
    with _transaction(url) as connection:
        connection.execute(f"SELECT FROM {name} FOR UPDATE".encode())
        yield


@contextmanager
def connections_used_up(url: str) -> Iterator[None]:
    """All connections are taken, those that are kept for superusers too."""
    with ExitStack() as taken:
        while connection := _connection(url):
            taken.enter_context(connection)
        yield


def _connection(url: str) -> psycopg.Connection[Any] | None:
    with suppress(psycopg.OperationalError):
        return psycopg.connect(url, connect_timeout=CONNECT_SECONDS)
    return None


@contextmanager
def lock_table_full(url: str) -> Iterator[None]:
    """The memory for locks is used up, as by somebody who drops thousands of tables at once."""
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS) as connection:
        numbers = f"generate_series(1, {_MORE_THAN_ANY_TABLE_HOLDS}) AS numbers (number)"
        with suppress(psycopg.errors.OutOfMemory):  # until it is full; what was locked stays so
            connection.execute(f"SELECT pg_advisory_lock(-number) FROM {numbers}".encode())
        yield


def locks(tables: TableNames) -> dict[str, tuple[Any, str]]:
    """How the callback tables can be locked, by what it is called: a way of this module, and a table."""
    return {
        "callback table locked": (table_locked, tables.transaction),
        "meta table locked": (table_locked, tables.meta),
        "fence row locked": (rows_locked, tables.fence),
    }


def table_locks(tables: TableNames) -> dict[str, tuple[Any, str]]:
    return {
        "message table locked": (table_locked, tables.message),
        "row of the table source locked": (rows_locked, tables.source),
    }


@contextmanager
def _transaction(url: str) -> Iterator[psycopg.Connection[Any]]:
    options = f"-c lock_timeout={LOCK_WAIT}"
    with psycopg.connect(url, connect_timeout=CONNECT_SECONDS, options=options) as connection:
        yield connection
        connection.rollback()
