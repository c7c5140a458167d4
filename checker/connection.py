"""How the checker connects to a producers' database."""

from __future__ import annotations

from typing import Any

import psycopg

from checker.settings import DatabaseSettings

CONNECT_SECONDS = 5


def connect(settings: DatabaseSettings, purpose: str = "checker", options: str = "") -> psycopg.Connection[Any]:
    """A connection in autocommit, to a writable primary: a replica's "no row" would be a lie (R8).

    Args:
        settings: Of the database.
        purpose: What it is for; it stands in `application_name` after `outbox-`.
        options: Further server settings, such as `-c lock_timeout=1s`.

    Raises:
        psycopg.Error: It is not there, or refuses.
    """
    return psycopg.connect(
        settings.dsn.get_secret_value(),
        autocommit=True,
        connect_timeout=CONNECT_SECONDS,
        application_name=f"outbox-{purpose}",
        target_session_attrs="read-write",
        options=f"-c statement_timeout=30s -c search_path=pg_catalog {options}",
        tcp_user_timeout=10_000,
    )
