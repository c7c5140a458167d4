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

app = typer.Typer(help="Create the tables of a database, or print their SQL.", no_args_is_help=True)

Roles = list[str] | None

ApplicationRoles = Annotated[
    Roles, typer.Option("--application-role", help="Role that gets what the library needs; repeatable.")
]
CheckerRoles = Annotated[
    Roles, typer.Option("--checker-role", help="Role that gets what the checker and the audit need; repeatable.")
]
RelayRoles = Annotated[
    Roles, typer.Option("--relay-role", help="Role that gets what the relay needs in table mode; repeatable.")
]
OperatorRoles = Annotated[
    Roles, typer.Option("--operator-role", help="Role that gets what operators need in table mode; repeatable.")
]
ExecutorRoles = Annotated[
    Roles, typer.Option("--executor-role", help="Role that gets what tasks of Spark need; repeatable.")
]
DriverRoles = Annotated[
    Roles, typer.Option("--driver-role", help="Role that gets what drivers of Spark need; repeatable.")
]
ConsumerRoles = Annotated[
    Roles, typer.Option("--consumer-role", help="With --inbox: role that gets what a consumer needs; repeatable.")
]
PurgerRoles = Annotated[
    Roles, typer.Option("--purger-role", help="With --inbox: role that gets what `inbox purge` needs; repeatable.")
]
Sink = Annotated[bool, typer.Option("--sink", help="Create the tables of the sink for Spark, too, as its roles do.")]
Inbox = Annotated[bool, typer.Option("--inbox", help="Only the inbox table, for consumers.")]
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
PrintSql = Annotated[bool, typer.Option("--print-sql", help="Print the SQL instead, for a migration of your own.")]


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
    consumer_role: ConsumerRoles = None,
    purger_role: PurgerRoles = None,
    sink: Sink = False,  # noqa: FBT002 - a flag
    inbox: Inbox = False,  # noqa: FBT002 - a flag
    message_table: ForeignName = "",
    mark_column: MarkColumn = "",
    print_sql: PrintSql = False,  # noqa: FBT002 - a flag
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
