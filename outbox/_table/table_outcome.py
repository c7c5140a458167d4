"""Determine the outcome of a local transaction in table mode, by a row that belongs to it (R74).

An xid is no proof: Postgres gives it out again if its WAL was not on disk at a crash or failover, and another server
has its own. A committed transaction has rows of its xid and start that wait, are discarded, or are evidence (R61). With
none of them, a rollback is proven only if the server never gave the xid out, or has it as aborted: evidence may have
been deleted by hand.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy.engine import Engine

from outbox._postgres.table_errors import explanation_of
from outbox._table.insert_connection import InsertConnection, insert_connection
from outbox._table.message_insert import Statement
from outbox.errors import TableError, UsageError
from outbox.protocol.identifiers import started_us_of, xid_of
from outbox.settings import TableNames
from outbox.transaction import Outcome, check_transaction_id

LOST_XIDS = 1_000_000
"""A server can have lost so many transactions in a crash or failover; an xid further ahead is of another database."""

# One statement has one snapshot: a row that is moved meanwhile is seen once, and a transaction is open if the snapshot
# cannot have its rows. Its xmax may be below the next xid, which age() counts from.
_ASK = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby'"
    " WHEN {secured} THEN 'hidden'"
    " WHEN {found} THEN 'committed'"
    " WHEN NOT pg_visible_in_snapshot(xid, taken) AND ahead < 0 THEN 'open'"
    " WHEN started <= (SELECT purged_until FROM {source} WHERE id = 0) THEN 'too old'"
    " WHEN ahead > {lost} THEN 'strange'"
    " WHEN ahead >= 0 THEN 'rolled back'"
    " WHEN coalesce(pg_xact_status(xid), 'committed') = 'committed' THEN 'too old'"
    " ELSE 'rolled back' END"
    " FROM (SELECT *, CAST(CAST(xid AS text) AS bigint) - CAST(CAST(pg_snapshot_xmax(taken) AS text) AS bigint)"
    " - age(CAST(pg_snapshot_xmax(taken) AS xid)) AS ahead"
    " FROM (SELECT CAST(CAST({0} AS text) AS xid8) AS xid, timestamptz '1970-01-01 00:00:00+00'"
    " + CAST(CAST({1} AS text) AS bigint) * interval '1 microsecond' AS started, pg_current_snapshot() AS taken"
    ") AS given) AS asked"
)
_FOUND = "EXISTS (SELECT FROM {} AS found WHERE found.xid = asked.xid AND found.created_at = asked.started)"
_SECURED = "row_security_active(CAST('{}' AS text))"


def ask_table_outcome(names: TableNames, transaction_id: str, database: Any) -> Outcome:
    """Return the outcome of a transaction. Nothing is written, and an open transaction may still commit.

    Args:
        database: An engine of SQLAlchemy, or a connection outside a transaction.
    """
    check_transaction_id(transaction_id)
    if isinstance(database, Engine):
        with database.connect() as connection:
            return _ask(names, insert_connection(connection), transaction_id)
    return _ask(names, insert_connection(database), transaction_id)


def _ask(names: TableNames, connection: InsertConnection, transaction_id: str) -> Outcome:
    if connection.in_transaction:
        raise UsageError("The connection is in a transaction. Give outcome() another connection, or an engine.")
    try:
        found = _answer(connection, _statement(names, transaction_id, numbered=connection.numbered))
    except Exception as error:
        if (explanation := explanation_of(error, names.schema, names.message)) is not None:
            raise explanation from error
        raise
    if found == "standby":
        raise UsageError("The server is a standby, which may lag behind. Give outcome() a connection to the primary.")
    if found == "hidden":
        raise TableError(
            f"Row security hides rows of {names.schema}.{names.message}, or of the tables beside it, from this role. "
            "Disable row security on them, or give the role BYPASSRLS."
        )
    if found == "strange":
        raise UsageError(
            f"{transaction_id!r} is not a transaction of this database in table mode: no transaction has the xid "
            f"{xid_of(transaction_id)}. Give the transaction_id of a receipt, and the database in which it was "
            "published."
        )
    return Outcome(found)


def _statement(names: TableNames, transaction_id: str, *, numbered: bool) -> Statement:
    tables = [f'"{names.schema}"."{name}"' for name in (names.message, names.discarded, names.delivered)]
    source = f'"{names.schema}"."{names.source}"'
    text = _ASK.format(
        *(("$1", "$2") if numbered else ("%s", "%s")),
        secured=" OR ".join(map(_SECURED.format, [*tables, source])),
        found=" OR ".join(map(_FOUND.format, tables)),
        source=source,
        lost=LOST_XIDS,
    )
    return Statement(text, (str(xid_of(transaction_id)), str(started_us_of(transaction_id))))


def _answer(connection: InsertConnection, statement: Statement) -> str:
    """Return the one value of a statement, and leave no transaction open."""
    try:
        found = str(connection.run(statement)[0][0])
    except BaseException:
        with suppress(Exception):  # not the error of a rollback on a connection that is lost
            _leave(connection)
        raise
    _leave(connection)
    return found


def _leave(connection: InsertConnection) -> None:
    if not connection.autocommits:
        connection.roll_back()
