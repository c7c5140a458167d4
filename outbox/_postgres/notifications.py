"""Notifications of commits to a message table or foreign table: the trigger that sends them, and how the relay waits.

Postgres lets only one transaction at a time commit a notification. So the trigger sends one only while the relay waits:
the relay then holds an advisory lock. A transaction that inserts rows while the relay does not wait takes the same
lock, shared, until it ends, and the relay cannot begin to wait before that. So the commit of each row is either read
or notified.
"""

import time
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from outbox._postgres.ddl import split

STOP_SECONDS = 0.25
"""How often a wait looks whether to stop; it costs the database nothing."""

# The body has no line break behind a semicolon: `split()` would end the statement there.
# It runs as the owner, so that applications need no right to take locks (R67), and names each operator's schema, so
# that no search path gives it another one.
NOTIFY_BODY: LiteralString = """
BEGIN IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(
    1869967459, CAST(CAST(TG_RELID AS bigint) OPERATOR(pg_catalog.-) 2147483648 AS integer)
) THEN PERFORM pg_catalog.pg_notify(pg_catalog.concat('outbox.', TG_RELID), ''); END IF; RETURN NULL; END
"""
_DDL: LiteralString = f"""
CREATE OR REPLACE FUNCTION {{function}}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $${NOTIFY_BODY}$$;
CREATE OR REPLACE TRIGGER outbox_notify AFTER INSERT ON {{table}} FOR EACH STATEMENT EXECUTE FUNCTION {{function}}();
"""
_DROP: LiteralString = "DROP FUNCTION IF EXISTS {function}() CASCADE"  # with its trigger

NOTIFIED = {
    True: "commits notify the relay (`--notify`)",
    False: "commits do not notify the relay: it polls",
}
"""By `has_trigger()`, for people."""

_TRIGGER: LiteralString = (
    " FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = 'outbox_notify' AND tgenabled IN ('O', 'A')"
)
_EXISTS: LiteralString = f"SELECT EXISTS (SELECT{_TRIGGER})"
_BEGIN: LiteralString = (
    "SELECT CAST(tgrelid AS bigint),"
    " pg_try_advisory_lock(1869967459, CAST(CAST(tgrelid AS bigint) - 2147483648 AS integer))"
    f"{_TRIGGER}"
)
_END: LiteralString = "SELECT pg_advisory_unlock(1869967459, CAST(%s - 2147483648 AS integer))"


def notify_statements(table: sql.Identifier, function: sql.Identifier, *, notify: bool | None) -> list[sql.Composed]:
    """Return the statements that create or drop the trigger.

    Args:
        notify: True: create; False: drop; None: leave it as it is, without a statement.
    """
    if notify is None:
        return []
    return [statement.format(table=table, function=function) for statement in split(_DDL if notify else _DROP)]


def has_trigger(connection: psycopg.Connection[Any], table: str) -> bool:
    return connection.execute(_EXISTS, (table,)).fetchone() == (True,)


class Notifications:
    """Notifications of commits to one table, received on the session of its owner.

    Args:
        connection: In autocommit, without a pooler in transaction mode.
    """

    def __init__(self, connection: psycopg.Connection[Any], table: str) -> None:
        self._connection = connection
        self._table = table
        self._listens_to: int | None = None

    def try_begin(self) -> bool | None:
        """Begin to wait for notifications. What was committed before must be read once more afterwards.

        Returns:
            Whether the wait has begun. False: a transaction that inserted rows and sends no notification is open.
            None: the table has no trigger, or a disabled one.
        """
        found = self._connection.execute(_BEGIN, (self._table,)).fetchone()
        if found is None:
            return None
        table, has_begun = found
        if table != self._listens_to:
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"outbox.{table}")))
            self._listens_to = table
        self.drop()  # those of what is read next
        return bool(has_begun)

    def drop(self) -> None:
        """Drop the notifications that have come while nothing waits for them.

        The session goes on listening between two waits, psycopg keeps what comes with the answers to statements, and
        every role of the database may send notifications.
        """
        if self._listens_to is not None:
            for _ in self._connection.notifies(timeout=0):
                pass

    def end(self) -> None:
        """End the wait: transactions that insert from now on send no notification."""
        self._connection.execute(_END, (self._listens_to,))

    def wait(self, seconds: float, stopping: Callable[[float], bool]) -> bool:
        """Wait for a notification after the wait has begun; return whether one came."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not stopping(0):
            if list(self._connection.notifies(timeout=min(left, STOP_SECONDS), stop_after=1)):
                return True
        return False
