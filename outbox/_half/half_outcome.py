"""Determine the outcome of a local transaction whose COMMIT got no reply.

It works like the checker (R1, R8). The transaction's advisory lock shows whether it may still be running. If the lock
is free, a rollback row is inserted; the row that is then in the callback table is the answer.
"""

from __future__ import annotations

import uuid
from typing import LiteralString

from psycopg import sql
from psycopg.pq import TransactionStatus

from outbox._postgres.callback_table import CallbackRow, CallbackTable, may_be_purged
from outbox._postgres.table_errors import explained
from outbox._publish.local_connection import LocalConnection
from outbox.errors import UsageError
from outbox.protocol.identifiers import lock_number
from outbox.protocol.op import NO_OFFSET
from outbox.protocol.positions import Positions
from outbox.settings import Settings
from outbox.transaction import Outcome, check_transaction_id

_ASK: LiteralString = (
    "SELECT pg_try_advisory_xact_lock(%s),"
    " (SELECT value::bigint FROM {meta} WHERE key = 'purged_until'),"
    " set_config('synchronous_commit', 'on', true),"
    " set_config('idle_in_transaction_session_timeout', '5s', true)"
)
_FENCE: LiteralString = (
    "INSERT INTO {transaction} (transaction_id, service, state, channel, half_topic_id, half_partition,"
    " first_offset, last_offset, positions) VALUES (%s, %s, 'R', %s, %s, %s, %s, %s, %s)"
    " ON CONFLICT (transaction_id) DO NOTHING"
)
_PURGED_UNTIL: LiteralString = "SELECT max(value::bigint) FROM {meta} WHERE key = 'purged_until'"
_READ: LiteralString = (
    "SELECT state, (SELECT max(value::bigint) FROM {meta} WHERE key = 'purged_until')"
    " FROM {transaction} WHERE transaction_id = %s"
)
_BEGIN = sql.SQL("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_COMMIT = sql.SQL("COMMIT")
_NO_TOPIC = str(uuid.UUID(int=0))


def ask_outcome(settings: Settings, table: CallbackTable, connection: LocalConnection, transaction_id: str) -> Outcome:
    """Return the outcome of a transaction; fence it if it neither committed nor holds its lock.

    Args:
        connection: A connection outside a transaction.
    """
    _check(connection, transaction_id)
    with connection.autocommit(on=True):
        try:
            with explained(table.names.schema, table.names.transaction):
                fenced = _fence(settings, table, connection, transaction_id)
                row = connection.execute(table.compose(_READ), (transaction_id,)).row
        except BaseException:
            connection.roll_back()
            raise
    if row is None:
        return Outcome.TOO_OLD if fenced else Outcome.OPEN
    state, purged_until = row
    if state == "C":
        return Outcome.COMMITTED
    # A copied half, or a topic that is read again, can produce a rollback row for a transaction whose row was purged.
    return Outcome.TOO_OLD if may_be_purged(transaction_id, purged_until) else Outcome.ROLLED_BACK


def _check(connection: LocalConnection, transaction_id: str) -> None:
    check_transaction_id(transaction_id)
    if connection.status is not TransactionStatus.IDLE:
        raise UsageError("The connection is in a transaction. Give outcome() another connection, or an engine.")


def _fence(settings: Settings, table: CallbackTable, connection: LocalConnection, transaction_id: str) -> bool:
    """Insert the rollback row, unless the transaction holds its lock or is so old that its row may have been purged.

    Returns:
        Whether the lock was free.
    """
    connection.execute(_BEGIN)
    asked = connection.execute(table.compose(_ASK), (lock_number(transaction_id),)).row
    free, purged_until = (bool(asked[0]), asked[1]) if asked is not None else (False, None)
    if free and not may_be_purged(transaction_id, purged_until):
        rollback_row = CallbackRow(
            transaction_id, settings.service, settings.channel.name, _NO_TOPIC, 0, NO_OFFSET, NO_OFFSET, Positions(())
        )
        connection.execute(table.compose(_FENCE), rollback_row.values())
        now = connection.execute(table.compose(_PURGED_UNTIL)).row
        if may_be_purged(transaction_id, now[0] if now is not None else None):
            connection.roll_back()  # the INSERT waited for a purge of the same row
            return free
    connection.execute(_COMMIT)
    return free
