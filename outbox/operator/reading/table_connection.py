"""Connections to the databases of message tables, for the commands of operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from outbox._postgres.ddl import written
from outbox._postgres.dsn import connect_dsn, connection_problem, connection_remedy, query_problem, server_limits
from outbox._postgres.foreign_source import ForeignSource
from outbox._postgres.source_statements import STATEMENT_SECONDS
from outbox._postgres.table_errors import explanation_of
from outbox.errors import ConfigurationError, TableError
from outbox.settings import TableNames

CONNECT_SECONDS = 5

IDLE_SECONDS = 60
"""How long a command may be idle in a transaction."""

_OPTIONS = "-c lock_timeout=10s -c search_path=pg_catalog -c synchronous_commit=on"


IN_TABLES = "the setting tables"
"""Where an operator corrects the connection string of a table source."""


class DatabaseUnreachable(ConfigurationError):  # noqa: N818 - the name describes the state of the database
    """The database of a message table does not answer, refuses the session, or is a standby."""


def remedy(error: ConfigurationError, dsn: str) -> str:
    """Return what helps after an error of `table_connection()`."""
    if isinstance(error, DatabaseUnreachable):
        return connection_remedy(dsn, IN_TABLES)
    return f"correct {IN_TABLES}, or the rights of this role"


def refusal_to_write(dsn: str) -> str:
    """Return why a relay, which writes, gets no session in a database; empty: it gets one."""
    try:
        connect_dsn(dsn, autocommit=True, connect_timeout=CONNECT_SECONDS, target_session_attrs="read-write").close()
    except psycopg.Error as error:
        return connection_problem(error, dsn)
    return ""


def operator_session(dsn: str, *, writes: bool) -> psycopg.Connection[Any]:
    """Connect to a primary in autocommit; without `writes` the server sees to it that nothing is written."""
    read_only = "" if writes else " -c default_transaction_read_only=on"
    return connect_dsn(
        dsn,
        autocommit=True,
        prepare_threshold=None,  # behind a pooler the next transaction may be on another server process
        connect_timeout=CONNECT_SECONDS,
        application_name="outbox-operator",
        target_session_attrs="primary",
        options=f"{_OPTIONS} {server_limits(IDLE_SECONDS)}{read_only}",
        statement_seconds=STATEMENT_SECONDS,
        tcp_user_timeout=10_000,
    )


@contextmanager
def table_connection(
    source: str, names: TableNames, dsn: str, *, writes: bool = False, foreign: ForeignSource | None = None
) -> Iterator[psycopg.Connection[Any]]:
    """Connect to the primary in autocommit; errors inside the block become sentences.

    Args:
        writes: False: nothing is written, and the server sees to it.
        foreign: The foreign table that is delivered; None: a message table.
    """
    try:
        connection = operator_session(dsn, writes=writes)
    except psycopg.Error as error:
        problem = connection_problem(error, dsn)
        raise DatabaseUnreachable(f"The database of table source {source} cannot be asked: {problem}") from error
    with connection:
        try:
            yield connection
        except psycopg.Error as error:
            role = connection.info.user
            right = foreign.relay_right(role) if foreign else f"--operator-role {written(role)}"
            explained = explanation_of(error, names.schema, names.source, right)
            raise (TableError if explained else ConfigurationError)(
                f"Table source {source}: {explained or query_problem(error)}"
            ) from error
