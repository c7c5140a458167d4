"""The examination of databases: server, tables, grants, and whether their rows have a relay."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, LiteralString

import psycopg

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import may_use_schema, missing_rights, written
from outbox._postgres.dsn import connect_dsn, connection_problem, connection_remedy, database_name
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import STATEMENT_SECONDS, source_name
from outbox._postgres.table_contract import breaches, exists
from outbox._settings.declared import CheckerDatabase, TableSettings
from outbox.errors import ConfigurationError
from outbox.operator.checks.finding import Finding
from outbox.operator.reading.table_view import CONNECT_SECONDS, TableView
from outbox.settings import TableNames

_MIN_POSTGRES = 140_000

_READABLE: LiteralString = (
    "SELECT coalesce(has_column_privilege(to_regclass(%s), 'created_at', 'SELECT'), false)"
    " AND to_regclass(%s) IS NOT NULL"
)
_OLDEST: LiteralString = "SELECT CAST({age} AS integer) FROM {message} ORDER BY id LIMIT 1"
_MAY_INSERT: LiteralString = (
    "SELECT has_column_privilege(to_regclass(%(table)s), 'value', 'INSERT')"
    " AND has_column_privilege(to_regclass(%(table)s), 'id', 'SELECT')"
)
_MAY_ASK: LiteralString = "SELECT has_column_privilege(to_regclass(%s), 'starts', 'SELECT')"
_MAY_EXECUTE: LiteralString = (
    "SELECT coalesce(bool_and(has_function_privilege(p.oid, 'EXECUTE')), true) FROM pg_proc p"
    " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.proname = %s"
)

Place = tuple[str, str, str]
"""Database, schema and name of a message table."""


def examine_database(connection: psycopg.Connection[Any], table: CallbackTable) -> Iterator[Finding]:
    """Server, tables, grants of the present role, durability settings."""
    version = connection.info.server_version
    if version < _MIN_POSTGRES:
        yield Finding("postgres", f"version {version // 10_000} is too old", "use PostgreSQL 14 or newer")
    else:
        yield Finding("postgres", "", f"version {version // 10_000}, role {connection.info.user}")
    problems = table.problems(connection)
    for problem in problems:
        what, _, fix = problem.partition(": ")
        yield Finding("table", what, fix)
    if problems:
        return
    yield Finding("table", "", table.full_name)
    yield from _others(connection, table.names)
    yield from _grants(connection, table)
    yield from examine_publishing(connection, table.names)
    for setting in ("fsync", "full_page_writes"):
        row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        if row is not None and row[0] != "on":
            yield Finding("durability", f"{setting} is {row[0]}: a crash can lose decisions", f"set {setting} = on")


def _others(connection: psycopg.Connection[Any], names: TableNames) -> Iterator[Finding]:
    """Yield what is wrong with a message table and an inbox, if there are any (R75)."""
    for what, places in (("table mode", MessageTable(names).places), ("inbox", InboxTable(names).places)):
        if exists(connection, next(iter(places.values()))):
            for breach in breaches(connection, places):
                yield Finding(what, f"{breach.what}: {breach.harm}", breach.fix)


def examine_checker_database(name: str, database: CheckerDatabase, named: Collection[Place]) -> Iterator[Finding]:
    what, table = f"database {name}", CallbackTable(database.table_names())
    try:
        url = database.connection_string()
    except ConfigurationError as error:
        yield Finding(what, str(error), "correct dsn or dsn_file of the database")
        return
    try:
        with connect_dsn(
            url,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            target_session_attrs="read-write",
            options="-c search_path=pg_catalog",
            statement_seconds=STATEMENT_SECONDS,
        ) as opened:
            problems = table.problems(opened)
            beside = list(examine_unnamed(opened, database.table_names(), named))
    except psycopg.Error as error:
        problem = connection_problem(error, url)
        yield Finding(what, problem, connection_remedy(url, "the setting databases", problem))
        return
    for problem in problems:
        found, _, fix = problem.partition(": ")
        yield Finding(what, found, fix)
    if not problems:
        yield Finding(what, "", f"has {table.full_name}; `outbox checker --check` checks the checker's rights, too")
    yield from beside


def _grants(connection: psycopg.Connection[Any], table: CallbackTable) -> Iterator[Finding]:
    user = connection.info.user
    for privilege, name in table.missing_grants(connection, table.application_grant(user).rights):
        yield Finding(
            "grants", f"role {user} may not {privilege} on {name}", f"GRANT {privilege} ON {name} TO {written(user)}"
        )


def examine_publishing(connection: psycopg.Connection[Any], names: TableNames) -> Iterator[Finding]:
    """Yield whether the connection's role may publish in table mode, if the message table exists.

    The checker's role publishes nothing. It is the one that may delete rows of the callback table.
    """
    if not exists(connection, (names.schema, names.message)):
        return
    user, schema = connection.info.user, names.schema
    lacks = [
        f"{right} on {written(schema, name)}"
        for right, name, query, parameters in (
            ("INSERT", names.message, _MAY_INSERT, {"table": source_name(schema, names.message)}),
            ("SELECT (xid_range, xids, starts)", names.delivered, _MAY_ASK, (source_name(schema, names.delivered),)),
            ("EXECUTE", names.publish_function, _MAY_EXECUTE, (schema, names.publish_function)),
        )
        if connection.execute(query, parameters).fetchone() != (True,)
    ]
    if not lacks:
        yield Finding("table mode", "", f"role {user} may publish to {written(schema, names.message)}")
    elif missing_rights(connection, schema, {names.transaction: ("DELETE",)}):
        problem = f"role {user} may not {', '.join(lacks)}: publish() or outcome() in table mode fails"
        yield Finding("table mode", problem, f"run `outbox table create --application-role {written(user)}`")


def named_places(tables: Mapping[str, TableSettings]) -> set[Place]:
    return {
        (database_name(table.connection_string()), table.table_names().schema, table.table_names().message)
        for table in tables.values()
        if not table.is_foreign
    }


def examine_unnamed(
    connection: psycopg.Connection[Any], names: TableNames, named: Collection[Place]
) -> Iterator[Finding]:
    """Yield whether rows wait in a message table that the setting `tables` does not name, and no relay delivers."""
    table = MessageTable(names)
    if (connection.info.dbname, names.schema, names.message) in named or not may_use_schema(connection, names.schema):
        return
    places = source_name(names.schema, names.message), source_name(names.schema, names.source)
    if connection.execute(_READABLE, places).fetchone() != (True,):
        return
    row = connection.execute(table.compose(_OLDEST)).fetchone()
    if row is None:
        return
    what, owner = "table mode", TableView(table, connection).owner()
    if owner and not owner.why_not():
        found = f"{table.full_name} is delivered by database session {owner.pid}; the setting tables does not name it"
        yield Finding(what, "", found)
        return
    yield Finding(
        what,
        f"rows wait in {table.full_name}, the oldest for {row[0]} s: no relay delivers it, and the setting tables does "
        "not name it",
        "name it in the setting tables (OUTBOX_TABLES) of every relay, and of this command",
    )
