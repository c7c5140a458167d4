"""Connections of the checker to a producers' database, and what is verified on each new one (R7, R12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import structlog

from checker.durability import durability_problems, read_durability
from checker.settings import DatabaseSettings
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connect_dsn, connection_problem, query_problem
from outbox._postgres.server_limits import server_limits
from outbox.errors import ConfigurationError

CONNECT_SECONDS = 5

IDLE_SECONDS = 5
"""How long a connection may be idle in a transaction: between two statements there are milliseconds."""

_OPTIONS = "-c statement_timeout=30s -c search_path=pg_catalog"

log = structlog.get_logger()


class UnreachableError(ConfigurationError):
    """The database does not answer, or does not match the settings at present: it is a replica or read-only."""


def connect(
    settings: DatabaseSettings,
    purpose: str = "checker",
    options: str = "",
    *,
    writes: bool = True,
    idle_seconds: int = IDLE_SECONDS,
) -> psycopg.Connection[Any]:
    """Connect in autocommit, to a writable primary; if the checker may not write there, to any server.

    Args:
        purpose: What it is for; appended to `outbox-` in `application_name`.
        options: Further server settings, such as `-c lock_timeout=1s`.
        writes: False: nothing will be written, and the server sees to it; a primary that is read-only will do.
        idle_seconds: How long the connection may be idle in a transaction before the server ends it.
    """
    server = "read-write" if writes else "primary"  # a replica may not have the row yet (R8)
    read_only = " -c default_transaction_read_only=on" if settings.read_only or not writes else ""
    return connect_dsn(
        settings.connection_string(),
        autocommit=True,
        prepare_threshold=None,  # behind a pooler the next transaction may be on another server process
        connect_timeout=CONNECT_SECONDS,
        application_name=f"outbox-{purpose}",
        target_session_attrs="any" if settings.read_only else server,
        options=f"{_OPTIONS} {server_limits(idle_seconds)} {options}{read_only}",
        tcp_user_timeout=10_000,
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )


def connect_and_verify(name: str, settings: DatabaseSettings, *, purge: bool = False) -> psycopg.Connection[Any]:
    """Connect, and verify the tables, the role's rights and the server's settings that the fence needs.

    Args:
        purge: Whether the purge's rights are needed, too.
    """
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


def _problems(connection: psycopg.Connection[Any], settings: DatabaseSettings, *, purge: bool) -> Iterator[str]:
    table = CallbackTable(settings.tables())
    found = table.problems(connection)
    yield from found
    if not found:
        for needed, advice in _grants(table, read_only=settings.read_only, purge=purge):
            yield from _missing_grants(connection, table, needed, advice)
    server = read_durability(connection)
    if server and settings.durability != "development":
        yield from durability_problems(server, standby=settings.synchronous_standby)


def _grants(table: CallbackTable, *, read_only: bool, purge: bool) -> Iterator[tuple[Mapping[str, Sequence[str]], str]]:
    """Return the required rights by table, and the remedy for missing ones."""
    names = table.names
    if read_only:
        yield {names.transaction: ("SELECT",), names.meta: ("SELECT",)}, "grant it"
        return
    writes = {names.transaction: ("SELECT", "INSERT"), names.meta: ("SELECT",), names.fence: ("SELECT", "UPDATE")}
    yield writes, "grant it"
    if purge:
        deletes = {names.transaction: ("DELETE",), names.meta: ("INSERT", "UPDATE")}
        yield deletes, "grant it, or set purge = false (OUTBOX_PURGE)"


def _missing_grants(
    connection: psycopg.Connection[Any], table: CallbackTable, needed: Mapping[str, Sequence[str]], advice: str
) -> Iterator[str]:
    missing = table.missing_grants(connection, needed)
    if missing:
        wanted = ", ".join(f"{privilege} on {name}" for privilege, name in missing)
        yield f"role {connection.info.user} lacks {wanted}: {advice}"
