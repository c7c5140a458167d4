"""`outbox table create`: the tables in an application's database."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from outbox._cli.setting_options import setting_options
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import Grant, written
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.table_contract import Table, require_contract
from outbox._settings.declared import PostgresSettings
from outbox.errors import UsageError
from outbox.migration import Part, ddl, inbox_ddl, inbox_grants, parts
from outbox.operator.settings import Given, database

app = typer.Typer(
    help="Create the tables of a database, or print their SQL.", no_args_is_help=True, callback=lambda: None
)

Roles = list[str] | None


def _role(what: str) -> Any:
    return typer.Option(help=f"{what}; repeatable.")


@app.command()
@setting_options(PostgresSettings)
def create(
    given: Given,
    application_role: Annotated[Roles, _role("Role that gets what the library needs")] = None,
    checker_role: Annotated[Roles, _role("Role that gets what the checker and the audit need")] = None,
    relay_role: Annotated[Roles, _role("Role that gets what the relay needs in table mode")] = None,
    operator_role: Annotated[Roles, _role("Role that gets what operators need in table mode")] = None,
    executor_role: Annotated[Roles, _role("Role that gets what tasks of Spark need")] = None,
    driver_role: Annotated[Roles, _role("Role that gets what drivers of Spark need")] = None,
    consumer_role: Annotated[Roles, _role("With --inbox: role that gets what a consumer needs")] = None,
    purger_role: Annotated[Roles, _role("With --inbox: role that gets what deletes old rows")] = None,
    sink: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--sink", help="Create the tables of the sink for Spark, too, as its roles do.")
    ] = False,
    inbox: Annotated[bool, typer.Option("--inbox", help="Only the inbox table, for consumers.")] = False,  # noqa: FBT002 - a flag
    message_table: Annotated[
        str, typer.Option(help="SCHEMA.TABLE that the application made: only what the relay needs beside it.")
    ] = "",
    mark_column: Annotated[
        str, typer.Option(help="With --message-table: column that the relay sets, if it deletes no rows.")
    ] = "",
    print_sql: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--print-sql", help="Print the SQL instead, for a migration of your own.")
    ] = False,
) -> None:
    """Create the tables and give rights on them. Running it again changes nothing."""
    settings = PostgresSettings(**given)
    consumers: dict[str, Any] = {"consumer_roles": consumer_role or (), "purger_roles": purger_role or ()}
    roles = {
        "application": application_role or (),
        "checker": checker_role or (),
        "relay": relay_role or (),
        "operator": operator_role or (),
        "executor": executor_role or (),
        "driver": driver_role or (),
    }
    if inbox and any([*roles.values(), sink, message_table, mark_column]):
        raise UsageError("--inbox has no roles but --consumer-role and --purger-role. Omit other options.")
    if any(consumers.values()) and not inbox:
        raise UsageError("--consumer-role and --purger-role are of the inbox table. Give --inbox, too.")
    names = settings.table_names()
    if print_sql:
        of_roles: dict[str, Any] = {f"{role}_roles": some for role, some in roles.items()}
        beside: dict[str, Any] = {"message_table": message_table, "mark_column": mark_column}
        typer.echo(inbox_ddl(names, **consumers) if inbox else ddl(names, sink=sink, **of_roles, **beside), nl=False)
    elif inbox:
        table = InboxTable(names)
        _make(settings, [(table, inbox_grants(table, *consumers.values()))])
    else:
        _make(settings, parts(names, roles, sink=sink, foreign=message_table, mark=mark_column))


def _make(settings: PostgresSettings, tables: Sequence[Part | tuple[InboxTable, list[Grant]]]) -> None:
    """Create tables, and look whether they are as they must be."""
    with database(settings) as connection:
        for table, grants in tables:
            table.create(connection, grants)
        for table, _ in tables:
            if isinstance(table, CallbackTable):
                table.verify(connection)
            require_contract(connection, table.places)
    for table, _ in tables:
        for kind, place in table.places.items():
            if kind is not Table.FOREIGN:
                typer.echo(f"table {written(*place)} is ready")
