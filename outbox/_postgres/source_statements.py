"""Statements about the owner and the progress of a table source, which relay and operators share."""

from __future__ import annotations

from typing import LiteralString

# The owner's advisory lock has two numbers: those of one number belong to the transactions of half mode.
TRY_OWN: LiteralString = (
    "SELECT pg_try_advisory_lock(1869967458, CAST(CAST(CAST(%s AS regclass) AS oid)::bigint - 2147483648 AS integer))"
)
"""Takes the owner's lock for the session without waiting; the parameter is `source_name()`."""

OWNS: LiteralString = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND granted"
    " AND objsubid = 2 AND classid = 1869967458"
    " AND objid::bigint = (CAST(CAST(%s AS regclass) AS oid)::bigint + 2147483648) %% 4294967296)"
)
"""Returns whether this session has the owner's lock; the parameter is `source_name()`."""

OWNER: LiteralString = (
    "SELECT l.pid, host(a.client_addr), a.usename,"
    " coalesce(has_table_privilege(a.usesysid, CAST(%(source)s AS regclass), 'UPDATE'), true)"
    " FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
    " LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
    " WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted AND l.objsubid = 2"
    " AND l.classid = 1869967458"
    " AND l.objid::bigint = (CAST(CAST(%(source)s AS regclass) AS oid)::bigint + 2147483648) %% 4294967296"
)
"""The session that holds the owner's lock, and whether its role may deliver; the parameter `source` is `source_name()`.

Every role of a database may take any advisory lock, also one without rights on the tables.
"""

PROGRESS: LiteralString = "SELECT name, incarnation::text, batch, delivered, ids FROM {source} WHERE id = 0"


def source_name(schema: str, table: str) -> str:
    """Return the name of a source table as `regclass` takes it."""
    return f'"{schema}"."{table}"'


def held_by_intruder(pid: int, role: str) -> str:
    """Return why a source has no owner although its lock is held.

    Args:
        pid: Process id of the session that holds it.
        role: Role of that session, which may not deliver the table.
    """
    return (
        f"role {role} holds the owner's lock and may not deliver the table: pid {pid}. End that session with "
        f"pg_terminate_backend({pid}). docs/operations/teams.md shows how to keep roles from doing this"
    )
