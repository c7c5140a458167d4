"""`outbox table create`: the tables in an application's database."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from outbox._cli.setting_options import option, setting_options
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import Grant, written
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.table_contract import Table, require_contract
from outbox._settings.declared import PostgresSettings
from outbox.errors import UsageError
from outbox.migration import Part, parts
from outbox.operator.settings import Given, database

app = typer.Typer(
    help="Create the tables of a database, or print their SQL.", no_args_is_help=True, callback=lambda: None
)

Roles = list[str] | None
Made = Part | tuple[InboxTable, list[Grant]]


def _role(what: str) -> Any:
    return option(f"{what}; repeatable.")


@app.command()
@setting_options(PostgresSettings)
def create(
    given: Given,
    application_role: Annotated[Roles, _role("Role that gets what the library needs")] = None,
    checker_role: Annotated[Roles, _role("Role that gets what the checker and the audit need")] = None,
    relay_role: Annotated[Roles, _role("Role that gets what the relay, or an operator, needs in table mode")] = None,
    viewer_role: Annotated[Roles, _role("Role that gets what an operator needs who only looks")] = None,
    executor_role: Annotated[Roles, _role("Role that gets what tasks of Spark need")] = None,
    driver_role: Annotated[Roles, _role("Role that gets what drivers of Spark need")] = None,
    consumer_role: Annotated[Roles, _role("With --inbox: role that gets what a consumer needs")] = None,
    sink: Annotated[bool, option("Create the tables of the sink for Spark, too, as its roles do.", "--sink")] = False,
    inbox: Annotated[bool, option("Only the inbox table, for consumers.", "--inbox")] = False,
    message_table: Annotated[str, option("SCHEMA.TABLE of the application: make what the relay needs beside it.")] = "",
    mark_column: Annotated[str, option("With --message-table: column to set, where rows stay.")] = "",
    print_sql: Annotated[bool, option("Print the SQL instead, for a migration of your own.", "--print-sql")] = False,
) -> None:
    """Create the tables and give rights on them. Running it again changes nothing."""
    settings = PostgresSettings(**given)
    roles = {"application": application_role, "checker": checker_role, "relay": relay_role, "viewer": viewer_role}
    roles |= {"executor": executor_role, "driver": driver_role}
    if inbox and any([*roles.values(), sink, message_table, mark_column]):
        raise UsageError("--inbox has no roles but --consumer-role. Omit other options.")
    if consumer_role and not inbox:
        raise UsageError("--consumer-role is of the inbox table. Give --inbox, too.")
    names, table = settings.table_names(), InboxTable(settings.table_names())
    made: Sequence[Made] = [(table, [*map(table.consumer_grant, consumer_role or ())])]
    if not inbox:
        of = {name: some or () for name, some in roles.items()}
        made = parts(names, of, sink=sink, foreign=message_table, mark=mark_column)
    if print_sql:
        typer.echo("".join(table.ddl(grants) for table, grants in made), nl=False)
    else:
        _make(settings, made)


def _make(settings: PostgresSettings, tables: Sequence[Made]) -> None:
    with database(settings) as connection:
        for table, grants in tables:
            table.create(connection, grants)
        for table, _ in tables:
            if isinstance(table, CallbackTable):
                table.verify(connection)
            require_contract(connection, table.places)
    places = (place for table, _ in tables for kind, place in table.places.items() if kind is not Table.FOREIGN)
    for place in places:
        typer.echo(f"table {written(*place)} is ready")
