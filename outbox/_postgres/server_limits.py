"""Limits that a Postgres server puts on a session, so that a client that stops holds nothing for long (R41).

With them comes that row security makes a statement fail instead of hiding rows from it (R75).
"""

from __future__ import annotations

KEEPALIVE_SECONDS = 10
CHECK_SECONDS = 5


def server_limits(idle_seconds: int) -> str:
    """Return startup options of a connection (`options=`).

    The server ends the session if its client is idle in a transaction for too long (a stopped or frozen process), if
    the client does not answer TCP keepalives (a lost host or network), and if it closed the connection while a
    statement runs (a killed process).

    They are startup options, not SET statements: with a pooler in transaction mode, SET would change the sessions of
    other clients.

    Args:
        idle_seconds: How long the client may be idle in a transaction.
    """
    limits = {
        "idle_in_transaction_session_timeout": f"{idle_seconds}s",
        "client_connection_check_interval": f"{CHECK_SECONDS}s",
        "tcp_keepalives_idle": f"{KEEPALIVE_SECONDS}s",
        "tcp_keepalives_interval": "5s",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": f"{KEEPALIVE_SECONDS}s",
        "row_security": "off",
    }
    return " ".join(f"-c {name}={value}" for name, value in limits.items())
