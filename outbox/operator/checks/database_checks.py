"""The examination of databases: server, tables, grants, and whether their rows have a relay."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, LiteralString

import psycopg

from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import identifier, may_use_schema, missing_rights, written
from outbox._postgres.dsn import connection_remedy, database_name, query_problem
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.message_table import MessageTable
from outbox._postgres.source_statements import STATEMENT_SECONDS
from outbox._postgres.table_contract import Places, Table, breaches, exists
from outbox._settings.declared import CheckerDatabase, PostgresSettings
from outbox.errors import ConfigurationError
from outbox.operator.checks.finding import Finding
from outbox.operator.reading.table_view import TableView
from outbox.operator.settings import DoctorSettings, database
from outbox.settings import TableNames

_MIN_POSTGRES = 140_000

_READABLE: LiteralString = (
    "SELECT coalesce(has_column_privilege(to_regclass(%s), 'created_at', 'SELECT'), false)"
    " AND to_regclass(%s) IS NOT NULL"
)
_OLDEST: LiteralString = "SELECT CAST({age} AS integer) FROM {message} ORDER BY id LIMIT 1"
_MAY: LiteralString = "SELECT has_any_column_privilege(to_regclass(%s), %s)"
_MAY_EXECUTE: LiteralString = (
    "SELECT coalesce(bool_and(has_function_privilege(p.oid, 'EXECUTE')), true) FROM pg_proc p"
    " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = %s AND p.proname = %s"
)

Place = tuple[str, str, str]
"""Database, schema and name of a message table."""


def examine_databases(settings: DoctorSettings, *, half_mode: bool, is_shared: bool) -> Iterator[Finding]:
    """Yield what is found of the database that `postgres_url` names, unless it is shared, and of the checker's."""
    try:
        ours = [(one.connection_string(), one.table_names()) for one in settings.tables.values() if not one.is_foreign]
        named = {(database_name(dsn), names.schema, names.message) for dsn, names in ours}
    except ConfigurationError:  # the connection string of one cannot be read
        named = set()
    if not (settings.tables or settings.databases) or (settings.connection_string() and not is_shared):
        examine = partial(examine_database, half_mode=half_mode)
        yield from _examine("postgres", settings, "OUTBOX_POSTGRES_URL", named, examine)
    for name, one in settings.databases.items():
        what = f"database {name}"
        yield from _examine(what, one, "the setting databases", named, partial(_examine_callbacks, what))


def _examine(
    what: str,
    settings: PostgresSettings | CheckerDatabase,
    where: str,
    named: Collection[Place],
    examine: Callable[[psycopg.Connection[Any], CallbackTable], Iterator[Finding]],
) -> Iterator[Finding]:
    """Yield what is found of one database; `where` is what names it."""
    url, names = "", settings.table_names()
    try:
        url = settings.connection_string()
        more = {"target_session_attrs": "read-write", "statement_seconds": STATEMENT_SECONDS}
        with database(settings, **more) as opened:
            yield from [*examine(opened, CallbackTable(names)), *examine_unnamed(opened, names, named)]
    except (ConfigurationError, psycopg.Error) as error:
        problem = query_problem(error) if isinstance(error, psycopg.Error) else str(error)
        yield Finding(what, problem, connection_remedy(url, where, problem) if url else f"name it in {where}")


def examine_database(
    connection: psycopg.Connection[Any], table: CallbackTable, *, half_mode: bool = True
) -> Iterator[Finding]:
    """Server, tables, grants of the present role, durability settings.

    Args:
        half_mode: Whether the channel has it. Callback tables, a message table or an inbox must be there, each as it
            must be; without half mode a message table or an inbox.
    """
    version = connection.info.server_version
    if version < _MIN_POSTGRES:
        yield Finding("postgres", f"version {version // 10_000} is too old", "use PostgreSQL 14 or newer")
    else:
        yield Finding("postgres", "", f"version {version // 10_000}, role {connection.info.user}")
    names, messages = table.names, MessageTable(table.names)
    if not may_use_schema(connection, names.schema):
        yield from _broken("table", connection, table.places)
        return
    kinds = (table.places, messages.places, InboxTable(names).places)
    callbacks, is_published_to, inbox = (exists(connection, next(iter(places.values()))) for places in kinds)
    if half_mode and (callbacks or not (is_published_to or inbox)):
        yield from _examine_half_mode(connection, table)
    elif half_mode:
        yield Finding("table", "", f"{table.full_name} does not exist: half mode is not used here")
    if is_published_to:
        yield from _broken("table mode", connection, messages.places)
        yield from examine_publishing(connection, names)
    elif half_mode or inbox:
        yield Finding("table mode", "", f"{messages.full_name} does not exist: table mode is not used here")
    else:
        yield from _broken("table mode", connection, {Table.MESSAGE: messages.places[Table.MESSAGE]})
    if inbox:
        yield from _broken("inbox", connection, kinds[-1])
    for setting in ("fsync", "full_page_writes"):
        row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        if row is not None and row[0] != "on":
            yield Finding("durability", f"{setting} is {row[0]}: a crash can lose decisions", f"set {setting} = on")


def _broken(what: str, connection: psycopg.Connection[Any], places: Places) -> Iterator[Finding]:
    """Yield which conditions of their contract tables break (R75)."""
    yield from (Finding(what, f"{one.what}: {one.harm}", one.fix) for one in breaches(connection, places))


def _examine_half_mode(connection: psycopg.Connection[Any], table: CallbackTable) -> Iterator[Finding]:
    if problems := _problems("table", connection, table):
        yield from problems
        return
    yield Finding("table", "", table.full_name)
    user = connection.info.user
    for right, name in missing_rights(connection, table.names.schema, table.application_grant(user).rights):
        yield Finding("grants", f"role {user} may not {right} on {name}", f"GRANT {right} ON {name} TO {written(user)}")


def _examine_callbacks(what: str, connection: psycopg.Connection[Any], table: CallbackTable) -> Iterator[Finding]:
    """Yield what is found of a database of the checker, with whose rights this is."""
    fine = f"has {table.full_name}; `outbox checker --check` checks the checker's rights, too"
    yield from _problems(what, connection, table) or [Finding(what, "", fine)]


def _problems(what: str, connection: psycopg.Connection[Any], table: CallbackTable) -> list[Finding]:
    split = (problem.partition(": ") for problem in table.problems(connection))
    return [Finding(what, problem, fix) for problem, _, fix in split]


def examine_publishing(connection: psycopg.Connection[Any], names: TableNames) -> Iterator[Finding]:
    """Yield whether the connection's role may publish to the message table.

    The checker's role publishes nothing. It is the one that may delete rows of the callback table.
    """
    user, schema = connection.info.user, names.schema
    needed = (("INSERT", names.message), ("SELECT", names.message), ("SELECT", names.delivered))
    lacks = [
        f"{right} on {written(schema, name)}"
        for right, name in needed
        if connection.execute(_MAY, (identifier(schema, name), right)).fetchone() != (True,)
    ]
    if connection.execute(_MAY_EXECUTE, (schema, names.publish_function)).fetchone() != (True,):
        lacks.append(f"EXECUTE on {written(schema, names.publish_function)}")
    if not lacks:
        yield Finding("table mode", "", f"role {user} may publish to {written(schema, names.message)}")
    elif missing_rights(connection, schema, {names.transaction: ("DELETE",)}):
        problem = f"role {user} may not {', '.join(lacks)}: publish() or outcome() in table mode fails"
        create = f"outbox table create --application-role {written(user)}"
        yield Finding("table mode", problem, f"let the owner of the tables run `{create}`")


def examine_unnamed(
    connection: psycopg.Connection[Any], names: TableNames, named: Collection[Place]
) -> Iterator[Finding]:
    """Yield whether rows wait in a message table that the setting `tables` does not name, and no relay delivers."""
    table = MessageTable(names)
    if (connection.info.dbname, names.schema, names.message) in named or not may_use_schema(connection, names.schema):
        return
    places = identifier(names.schema, names.message), identifier(names.schema, names.source)
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
