"""Server settings that keep a committed row durable (R7), and prepared transactions that were left open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, LiteralString

import psycopg

_SETTINGS: LiteralString = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"
_NAMES = ["fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "wal_level"]
_PREPARED: LiteralString = (
    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - prepared)), 0)::float8"
    " FROM pg_prepared_xacts WHERE database = current_database()"
)


def durability_problems(found: Mapping[str, str], *, standby: bool) -> list[str]:
    """Return what could lose a committed row, one sentence each, with the remedy.

    Args:
        found: Settings of the server, as the checker's role has them.
    """
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
    """Return the relevant settings by name; empty on a replica, because only its primary's settings count."""
    if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        return {}
    return dict(connection.execute(_SETTINGS, (_NAMES,)).fetchall())


def oldest_prepared(connection: psycopg.Connection[Any]) -> float:
    """Age of the oldest prepared transaction of this database, in seconds; 0: there is none.

    A client that prepares a transaction and disappears leaves its locks: what it published stays IN_FLIGHT.
    """
    row = connection.execute(_PREPARED).fetchone()
    return 0.0 if row is None else float(row[0])
