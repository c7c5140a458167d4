"""Connections of the checker to a producers' database, and what is verified on each new one (R7, R12)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, LiteralString

import psycopg
import structlog

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import missing_rights
from outbox._postgres.dsn import connect_dsn, connection_problem, query_problem, server_limits
from outbox._settings.declared import CheckerDatabase
from outbox.errors import ConfigurationError

log = structlog.get_logger()

_SETTINGS: LiteralString = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"
_NAMES = ["fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "wal_level"]
_PREPARED: LiteralString = (
    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - prepared)), 0)::float8"
    " FROM pg_prepared_xacts WHERE database = current_database()"
)


def durability_problems(found: Mapping[str, str], *, standby: bool) -> list[str]:
    """Return what could lose a committed row, one sentence each, with the remedy."""
    checks = {
        "fsync is off: a crash loses what was committed; set fsync = on": found.get("fsync") == "on",
        "full_page_writes is off: a crash may damage the tables; set full_page_writes = on": found.get(
            "full_page_writes"
        )
        == "on",
        "synchronous_commit is off by default: who does not use the library commits what a crash takes back; "
        "set synchronous_commit = on, or remove it from the database and the role": found.get("synchronous_commit")
        != "off",
    }
    replicated = {
        "synchronous_standby is declared, and synchronous_standby_names is empty: COMMIT waits for no standby; "
        "name the standbys": found.get("synchronous_standby_names") != "",
        "synchronous_standby is declared, and synchronous_commit is local by default: set synchronous_commit = on": (
            found.get("synchronous_commit") != "local"
        ),
        "synchronous_standby is declared, and wal_level is minimal: set wal_level = replica": (
            found.get("wal_level") != "minimal"
        ),
    }
    return [problem for problem, fine in (checks | (replicated if standby else {})).items() if not fine]


def read_durability(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Return the relevant settings by name."""
    return dict(connection.execute(_SETTINGS, (_NAMES,)).fetchall())


def oldest_prepared(connection: psycopg.Connection[Any]) -> float:
    """Age of the oldest prepared transaction of this database, in seconds; 0: there is none.

    A client that prepares a transaction and disappears leaves its locks: what it published stays IN_FLIGHT.
    """
    row = connection.execute(_PREPARED).fetchone()
    return 0.0 if row is None else float(row[0])


CONNECT_SECONDS = 5

IDLE_SECONDS = 5
"""How long a connection may be idle in a transaction: between two statements there are milliseconds."""

STATEMENT_SECONDS = 30
_OPTIONS = "-c search_path=pg_catalog"


class UnreachableError(ConfigurationError):
    """The database does not answer, or takes no writes at present: it is a replica or read-only."""


def connect(
    settings: CheckerDatabase,
    purpose: str = "checker",
    options: str = "",
    *,
    writes: bool = True,
    idle_seconds: int = IDLE_SECONDS,
) -> psycopg.Connection[Any]:
    """Connect in autocommit, to a writable primary.

    Args:
        purpose: What it is for; appended to `outbox-` in `application_name`.
        writes: False: nothing will be written, and the server sees to it; a primary that is read-only will do.
        idle_seconds: How long the connection may be idle in a transaction before the server ends it.
    """
    server = "read-write" if writes else "primary"  # a replica may not have the row yet (R8)
    read_only = "" if writes else " -c default_transaction_read_only=on"
    return connect_dsn(
        settings.connection_string(),
        autocommit=True,
        prepare_threshold=None,  # behind a pooler the next transaction may be on another server process
        connect_timeout=CONNECT_SECONDS,
        application_name=f"outbox-{purpose}",
        target_session_attrs=server,
        options=f"{_OPTIONS} {server_limits(idle_seconds)} {options}{read_only}",
        statement_seconds=STATEMENT_SECONDS,
        tcp_user_timeout=10_000,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )


def database_ms(connection: psycopg.Connection[Any]) -> int:
    """Return the database's time, ms since 1970: rows and ages are compared by one clock."""
    ((now,),) = connection.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchall()
    return int(now)


def connect_and_verify(name: str, settings: CheckerDatabase, *, purge: bool = False) -> psycopg.Connection[Any]:
    """Connect, and verify tables, settings and rights that the fence needs, with `purge` also the rights of that."""
    try:
        connection = connect(settings)
    except psycopg.Error as error:
        reason = connection_problem(error, settings.connection_string())
        raise UnreachableError(f"database {name!r} cannot be used: {reason}") from error
    except ConfigurationError as error:
        raise ConfigurationError(f"database {name!r} cannot be used: {error}") from error
    try:
        problems = list(_problems(connection, settings, purge=purge))
    except psycopg.Error as error:
        connection.close()
        raise UnreachableError(f"database {name!r} cannot be used: {query_problem(error)}") from error
    if problems:
        connection.close()
        raise ConfigurationError(f"database {name!r} cannot be used: {'; '.join(problems)}")
    if connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",):
        log.warning(
            "A connection pooler dropped the startup options: a stopped checker may hold locks without limit. "
            "Connect directly, or set idle_in_transaction_session_timeout for the role",
            database=name,
        )
    return connection


def _problems(connection: psycopg.Connection[Any], settings: CheckerDatabase, *, purge: bool) -> Iterator[str]:
    table = CallbackTable(settings.table_names())
    found = table.problems(connection)
    yield from found
    if not found:
        for needed, advice in _grants(table, purge=purge):
            if missing := missing_rights(connection, table.names.schema, needed):
                wanted = ", ".join(f"{privilege} on {name}" for privilege, name in missing)
                yield f"role {connection.info.user} lacks {wanted}: {advice}"
    if settings.durability != "development":
        yield from durability_problems(read_durability(connection), standby=settings.synchronous_standby)


def _grants(table: CallbackTable, *, purge: bool) -> Iterator[tuple[Mapping[str, Sequence[str]], str]]:
    """Return the required rights by table, and the remedy for missing ones."""
    names = table.names
    writes = {names.transaction: ("SELECT", "INSERT"), names.meta: ("SELECT",), names.fence: ("SELECT", "UPDATE")}
    yield writes, "grant it"
    if purge:
        deletes = {names.transaction: ("DELETE",), names.meta: ("INSERT", "UPDATE")}
        yield deletes, "grant it, or set purge = false (OUTBOX_PURGE)"
