"""`outbox table create`: the tables in an application's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import psycopg
import typer

from outbox._cli.setting_options import setting_options
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import written
from outbox._postgres.message_table import MessageTable
from outbox._postgres.sink_tables import SinkTables
from outbox._postgres.table_contract import require_contract
from outbox._settings.declared import PostgresSettings
from outbox.errors import UsageError
from outbox.migration import callback_grants, ddl, foreign_source, message_grants
from outbox.operator.settings import Given, PrintSql, database
from outbox.settings import TableNames

app = typer.Typer(help="Create the callback tables and the message table, or print their SQL.", no_args_is_help=True)

ApplicationRoles = Annotated[
    list[str] | None, typer.Option("--application-role", help="Role that gets what the library needs; repeatable.")
]
CheckerRoles = Annotated[
    list[str] | None,
    typer.Option("--checker-role", help="Role that gets what the checker and the audit need; repeatable."),
]
RelayRoles = Annotated[
    list[str] | None,
    typer.Option("--relay-role", help="Role that gets what the relay needs in table mode; repeatable."),
]
OperatorRoles = Annotated[
    list[str] | None,
    typer.Option("--operator-role", help="Role that gets what operators need in table mode; repeatable."),
]
ExecutorRoles = Annotated[
    list[str] | None, typer.Option("--executor-role", help="Role that gets what tasks of Spark need; repeatable.")
]
DriverRoles = Annotated[
    list[str] | None, typer.Option("--driver-role", help="Role that gets what drivers of Spark need; repeatable.")
]
Sink = Annotated[bool, typer.Option("--sink", help="Create the tables of the sink for Spark, too, as its roles do.")]
ForeignName = Annotated[
    str,
    typer.Option(
        "--message-table", help="SCHEMA.TABLE that the application made: only what the relay needs beside it."
    ),
]
MarkColumn = Annotated[
    str,
    typer.Option("--mark-column", help="With --message-table: column that the relay sets, if it deletes no rows."),
]


Connection = psycopg.Connection[Any]


@app.callback()
def table() -> None:
    """Create the tables in an application's database."""


@app.command()
@setting_options(PostgresSettings)
def create(
    given: Given,
    application_role: ApplicationRoles = None,
    checker_role: CheckerRoles = None,
    relay_role: RelayRoles = None,
    operator_role: OperatorRoles = None,
    executor_role: ExecutorRoles = None,
    driver_role: DriverRoles = None,
    sink: Sink = False,  # noqa: FBT002 - a flag
    message_table: ForeignName = "",
    mark_column: MarkColumn = "",
    print_sql: PrintSql = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the tables and give rights on them. Running it again changes nothing."""
    settings = PostgresSettings(**given)
    _refuse_more(
        message_table, mark_column, [application_role, checker_role, operator_role, executor_role, driver_role, sink]
    )
    roles: dict[str, Any] = {
        "application_roles": application_role or (),
        "checker_roles": checker_role or (),
        "relay_roles": relay_role or (),
        "operator_roles": operator_role or (),
        "executor_roles": executor_role or (),
        "driver_roles": driver_role or (),
    }
    names = settings.table_names()
    if print_sql:
        more: dict[str, Any] = {"message_table": message_table, "mark_column": mark_column}
        typer.echo(ddl(names, sink=sink, **roles, **more), nl=False)
        return
    with database(settings) as connection:
        if message_table:
            made = _create_beside(connection, names, message_table, mark_column, relay_role or ())
        else:
            made = _create_all(connection, names, roles)
            if sink or executor_role or driver_role:
                made += _create_sink(connection, names, roles)
    typer.echo(f"table {made[0]} is ready")
    if made[1:]:
        typer.echo(f"for table mode: {', '.join(made[1:])}")


def _create_beside(connection: Connection, names: TableNames, table: str, mark: str, relay: Sequence[str]) -> list[str]:
    """Create what belongs to a foreign table."""
    foreign, rights = foreign_source(names, table, relay, mark)
    foreign.create(connection, rights)
    require_contract(connection, foreign.places)
    return [foreign.full_source]


def _create_all(connection: Connection, names: TableNames, roles: Mapping[str, Sequence[str]]) -> list[str]:
    """Create the tables of both modes."""
    table, messages = CallbackTable(names), MessageTable(names)
    application, checker, relay, operator, *_ = roles.values()
    table.create(connection, callback_grants(table, application, checker))
    messages.create(connection, message_grants(messages, application, checker, relay, operator))
    table.verify(connection)
    require_contract(connection, messages.places)
    return [table.full_name, *_message_tables(messages)]


def _create_sink(connection: Connection, names: TableNames, roles: Mapping[str, Sequence[str]]) -> list[str]:
    of_sink = SinkTables(names)
    of_sink.create(connection, of_sink.grants(roles["executor_roles"], roles["driver_roles"]))
    require_contract(connection, of_sink.places)
    return of_sink.full_names


def _message_tables(table: MessageTable) -> list[str]:
    places = [written(*place) for place in table.places.values()]
    return [*places, written(table.names.schema, table.names.publish_function)]


def _refuse_more(message_table: str, mark_column: str, others: Sequence[object]) -> None:
    """Refuse options that have no meaning together."""
    if message_table and any(others):
        raise UsageError(
            "--message-table has no roles but --relay-role: the application owns the table. Omit the others."
        )
    if mark_column and not message_table:
        raise UsageError("--mark-column is given without --message-table. Give both, or neither.")
