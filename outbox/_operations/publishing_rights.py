"""Whether a role may publish in table mode: without these rights `publish()` fails, though all else is fine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg

from outbox._operations.finding import Finding
from outbox._postgres.ddl import missing_rights, written
from outbox._postgres.table_contract import exists
from outbox.settings import TableNames

_MAY_INSERT: LiteralString = (
    "SELECT has_column_privilege(to_regclass(%(table)s), 'value', 'INSERT')"
    " AND has_column_privilege(to_regclass(%(table)s), 'id', 'SELECT')"
)
_MAY_ASK: LiteralString = "SELECT has_column_privilege(to_regclass(%s), 'created_at', 'SELECT')"
_MAY_EXECUTE: LiteralString = (
    "SELECT coalesce(bool_and(has_function_privilege(p.oid, 'EXECUTE')), true) FROM pg_proc p"
    " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.proname = %s"
)


def examine_publishing(connection: psycopg.Connection[Any], names: TableNames) -> Iterator[Finding]:
    """Yield whether the connection's role may publish in table mode, if the message table exists.

    The checker's role publishes nothing. It is the one that may delete rows of the callback table.

    Args:
        connection: Of the application's role.
    """
    if not exists(connection, (names.schema, names.message)):
        return
    user, schema = connection.info.user, names.schema
    lacks = [
        f"{right} on {written(schema, name)}"
        for right, name, query, parameters in (
            ("INSERT", names.message, _MAY_INSERT, {"table": _quoted(names)}),
            ("SELECT (xid, created_at)", names.delivered, _MAY_ASK, (f'"{schema}"."{names.delivered}"',)),
            ("EXECUTE", names.publish_function, _MAY_EXECUTE, (schema, names.publish_function)),
        )
        if connection.execute(query, parameters).fetchone() != (True,)
    ]
    if not lacks:
        yield Finding("table mode", "", f"role {user} may publish to {written(schema, names.message)}")
    elif missing_rights(connection, schema, {names.transaction: ("DELETE",)}):
        problem = f"role {user} may not {', '.join(lacks)}: publish() or outcome() in table mode fails"
        yield Finding("table mode", problem, f"run `outbox table create --application-role {written(user)}`")


def _quoted(names: TableNames) -> str:
    return f'"{names.schema}"."{names.message}"'
