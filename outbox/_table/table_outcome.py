"""Determine the outcome of a local transaction in table mode: Postgres itself remembers it, by the xid."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Engine

from outbox._postgres.table_errors import sqlstate_of
from outbox._table.insert_connection import InsertConnection, insert_connection
from outbox._table.message_insert import Statement
from outbox.errors import UsageError
from outbox.outcome import Outcome, check_transaction_id
from outbox.protocol.identifiers import xid_of

_ASK = "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE pg_xact_status(CAST(CAST({} AS text) AS xid8)) END"
_STANDBY = "standby"
_OUTCOMES = {
    "committed": Outcome.COMMITTED,
    "aborted": Outcome.ROLLED_BACK,
    "in progress": Outcome.OPEN,
    None: Outcome.TOO_OLD,
}
_IN_THE_FUTURE = "22023"
"""SQLSTATE of pg_xact_status() for an xid that was not assigned yet."""

_FIRST_XID = 3
_EPOCH = 1 << 32
"""No transaction has an xid below 3 in its epoch: Postgres reports those as committed, or as too old."""


def ask_table_outcome(transaction_id: str, database: Any) -> Outcome:
    """Return the outcome of a transaction. Nothing is written, and an open transaction may still commit.

    Args:
        transaction_id: The transaction.
        database: An engine of SQLAlchemy, or a connection outside a transaction.

    Raises:
        UsageError: The id is not one of table mode or not of this database, the connection is in a transaction, or the
            server is a standby.
    """
    check_transaction_id(transaction_id)
    if isinstance(database, Engine):
        with database.connect() as connection:
            return _ask(insert_connection(connection), transaction_id)
    return _ask(insert_connection(database), transaction_id)


def _ask(connection: InsertConnection, transaction_id: str) -> Outcome:
    if connection.in_transaction:
        raise UsageError("The connection is in a transaction. Give outcome() another connection, or an engine.")
    found = _status(connection, transaction_id)
    if found == _STANDBY:
        raise UsageError("The server is a standby, which may lag behind. Give outcome() a connection to the primary.")
    return _OUTCOMES[found]


def _status(connection: InsertConnection, transaction_id: str) -> str | None:
    xid = xid_of(transaction_id)
    if xid % _EPOCH < _FIRST_XID:
        raise _not_assigned(transaction_id, xid)
    try:
        rows = connection.run(Statement(_ASK.format("$1" if connection.numbered else "%s"), (str(xid),)))
    except Exception as error:
        if sqlstate_of(error) == _IN_THE_FUTURE:
            raise _not_assigned(transaction_id, xid) from None
        raise
    finally:
        if not connection.autocommits:
            connection.roll_back()
    found = rows[0][0]
    return None if found is None else str(found)


def _not_assigned(transaction_id: str, xid: int) -> UsageError:
    return UsageError(
        f"{transaction_id!r} is not a transaction of this database in table mode: no transaction has the xid {xid}. "
        "Give the transaction_id of a receipt, and the database in which it was published."
    )
