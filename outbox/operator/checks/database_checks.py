"""The examination of databases: server, tables, grants, and whether their rows have a relay."""

from collections.abc import Collection
from typing import LiteralString

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
from outbox.operator.checks.finding import Finding, Found
from outbox.operator.reading.table_view import Connection, TableView
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

Place = tuple[str, str, str]  # database, schema and name of a message table


def examine_databases(settings: DoctorSettings, *, half_mode: bool, is_shared: bool) -> Found:
    """Yield what is found of the database that `postgres_url` names, unless it is shared, and of the checker's."""
    try:
        ours = [(one.connection_string(), one.table_names()) for one in settings.tables.values() if not one.is_foreign]
        named = {(database_name(dsn), names.schema, names.message) for dsn, names in ours}
    except ConfigurationError:  # the connection string of one cannot be read
        named = set()
    asked: dict[str, PostgresSettings | CheckerDatabase] = {}
    if not (settings.tables or settings.databases) or (settings.connection_string() and not is_shared):
        asked["postgres"] = settings
    asked |= {f"database {name}": one for name, one in settings.databases.items()}
    for what, one in asked.items():
        where = "OUTBOX_POSTGRES_URL" if one is settings else "the setting databases"
        url, table = "", CallbackTable(one.table_names())
        try:
            url = one.connection_string()
            with database(one, target_session_attrs="read-write", statement_seconds=STATEMENT_SECONDS) as opened:
                found = _examine_callbacks(what, opened, table)
                if one is settings:
                    found = examine_database(opened, table, half_mode=half_mode)
                yield from [*found, *examine_unnamed(opened, table.names, named)]
        except (ConfigurationError, psycopg.Error) as error:
            problem = query_problem(error) if isinstance(error, psycopg.Error) else str(error)
            yield Finding(what, problem, connection_remedy(url, where, problem) if url else f"name it in {where}")


def examine_database(connection: Connection, table: CallbackTable, *, half_mode: bool = True) -> Found:
    """Server, tables, grants of the present role, durability settings.

    Callback tables, a message table or an inbox must be there, each as it must be; without half mode one of the latter.
    """
    version = connection.info.server_version
    if version < _MIN_POSTGRES:
        yield Finding("postgres", f"version {version // 10_000} is too old", "use PostgreSQL 14 or newer")
    else:
        yield Finding("postgres", "", f"version {version // 10_000}, role {connection.info.user}")
    names, messages = table.names, MessageTable(table.names)
    if not may_use_schema(connection, names.schema):
        yield from broken("table", connection, table.places)
        return
    kinds = (table.places, messages.places, InboxTable(names).places)
    callbacks, is_published_to, inbox = (exists(connection, next(iter(places.values()))) for places in kinds)
    if half_mode and (callbacks or not (is_published_to or inbox)):
        yield from _examine_half_mode(connection, table)
    elif half_mode:
        yield Finding("table", "", f"{table.full_name} does not exist: half mode is not used here")
    if is_published_to:
        yield from broken("table mode", connection, messages.places)
        yield from examine_publishing(connection, names)
    elif half_mode or inbox:
        yield Finding("table mode", "", f"{messages.full_name} does not exist: table mode is not used here")
    else:
        yield from broken("table mode", connection, {Table.MESSAGE: messages.places[Table.MESSAGE]})
    if inbox:
        yield from broken("inbox", connection, kinds[-1])
    for setting in ("fsync", "full_page_writes"):
        row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
        if row is not None and row[0] != "on":
            yield Finding("durability", f"{setting} is {row[0]}: a crash can lose decisions", f"set {setting} = on")


def broken(what: str, connection: Connection, places: Places, ways: str = "") -> list[Finding]:
    """Return which conditions of their contract tables break (R75), with further ways to mend that."""
    return [Finding(what, f"{one.what}: {one.harm}", one.fix + ways) for one in breaches(connection, places)]


def _examine_half_mode(connection: Connection, table: CallbackTable) -> Found:
    if problems := _problems("table", connection, table):
        yield from problems
        return
    yield Finding("table", "", table.full_name)
    user = connection.info.user
    for right, name in missing_rights(connection, table.names.schema, table.application_grant(user).rights):
        yield Finding("grants", f"role {user} may not {right} on {name}", f"GRANT {right} ON {name} TO {written(user)}")


def _examine_callbacks(what: str, connection: Connection, table: CallbackTable) -> Found:
    fine = f"has {table.full_name}; `outbox checker --check` checks the checker's rights, too"
    yield from _problems(what, connection, table) or [Finding(what, "", fine)]


def _problems(what: str, connection: Connection, table: CallbackTable) -> list[Finding]:
    return [Finding(what, *problem.partition(": ")[::2]) for problem in table.problems(connection)]


def examine_publishing(connection: Connection, names: TableNames) -> Found:
    """Yield whether the role may publish; the checker's, which may delete callback rows, need not."""
    user, schema, lacks = connection.info.user, names.schema, list[str]()
    for right, name in (("INSERT", names.message), ("SELECT", names.message), ("SELECT", names.delivered)):
        if connection.execute(_MAY, (identifier(schema, name), right)).fetchone() != (True,):
            lacks.append(f"{right} on {written(schema, name)}")
    if connection.execute(_MAY_EXECUTE, (schema, names.publish_function)).fetchone() != (True,):
        lacks.append(f"EXECUTE on {written(schema, names.publish_function)}")
    if not lacks:
        yield Finding("table mode", "", f"role {user} may publish to {written(schema, names.message)}")
    elif missing_rights(connection, schema, {names.transaction: ("DELETE",)}):
        problem = f"role {user} may not {', '.join(lacks)}: publish() or outcome() in table mode fails"
        create = f"outbox table create --application-role {written(user)}"
        yield Finding("table mode", problem, f"let the owner of the tables run `{create}`")


def examine_unnamed(connection: Connection, names: TableNames, named: Collection[Place]) -> Found:
    """Yield whether rows wait in a message table that the setting `tables` does not name, and no relay delivers."""
    table = MessageTable(names)
    if (connection.info.dbname, names.schema, names.message) in named or not may_use_schema(connection, names.schema):
        return
    places = identifier(names.schema, names.message), identifier(names.schema, names.source)
    if connection.execute(_READABLE, places).fetchone() != (True,):
        return
    if (row := connection.execute(table.compose(_OLDEST)).fetchone()) is None:
        return
    not_named, owner = "the setting tables does not name it", TableView(table, connection).owner()
    if owner and not owner.why_not():
        fine = f"{table.full_name} is delivered by database session {owner.pid}; {not_named}"
        yield Finding("table mode", "", fine)
        return
    wait = f"rows wait in {table.full_name}, the oldest for {row[0]} s: no relay delivers it, and {not_named}"
    yield Finding(
        "table mode", wait, "name it in the setting tables (OUTBOX_TABLES) of every relay, and of this command"
    )
