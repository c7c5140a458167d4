"""Transactions whose COMMIT waits for the disk, and for the standbys if there are synchronous ones (R7, R9)."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
from psycopg.errors import Diagnostic
from psycopg.pq import TransactionStatus

DURABLE: LiteralString = (
    "SELECT set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)"
)
"""Of the present transaction; what is stronger stays."""

_WARNING = "01000"


class NotReplicatedError(psycopg.OperationalError):
    """COMMIT returned, but the wait for the synchronous standbys was cancelled: replication is in doubt."""


def commit(connection: psycopg.Connection[Any]) -> None:
    """Commit, and verify that the synchronous standbys confirmed it.

    Raises:
        NotReplicatedError: The wait for the standbys was cancelled, by a time-out or an administrator.
        psycopg.Error: The outcome of the COMMIT is in doubt.
    """
    warnings: list[str | None] = []

    def hear(notice: Diagnostic) -> None:
        if notice.sqlstate == _WARNING:
            warnings.append(notice.message_primary)

    connection.add_notice_handler(hear)
    try:
        connection.execute("COMMIT")
    finally:
        connection.remove_notice_handler(hear)
    if warnings:
        raise NotReplicatedError(f"COMMIT was not replicated: {warnings[0]}; bring the synchronous standby back")


def roll_back(connection: psycopg.Connection[Any]) -> None:
    """ROLLBACK, if there is something to roll back and a server that can."""
    if connection.info.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        connection.execute("ROLLBACK")
