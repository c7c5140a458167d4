"""`outbox table`: create, print and verify the callback tables."""

from __future__ import annotations

from typing import Annotated

import typer

from outbox._cli.options import PostgresUrl, Prefix, Schema, database
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import Grant
from outbox._service.exit_codes import guarded
from outbox._service.output import Json, print_json
from outbox.settings import TableNames

app = typer.Typer(help="Create, print and verify the callback tables.", no_args_is_help=True)

ApplicationRoles = Annotated[
    list[str] | None, typer.Option("--application-role", help="Role that gets what the library needs; repeatable.")
]
CheckerRoles = Annotated[
    list[str] | None, typer.Option("--checker-role", help="Role that gets what the checker needs; repeatable.")
]


@app.command()
def create(
    postgres_url: PostgresUrl = "",
    schema: Schema = "public",
    table_prefix: Prefix = "outbox",
    application_role: ApplicationRoles = None,
    checker_role: CheckerRoles = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the tables and give rights on them. Running it again changes nothing."""

    def run() -> None:
        table = CallbackTable(TableNames(schema, table_prefix))
        grants = _grants(table, application_role, checker_role)
        with database(postgres_url) as connection:
            table.create(connection, grants)
            table.verify(connection)
        _tell(table, "ready", as_json=as_json)

    guarded(run)


@app.command("sql")
def print_sql(
    schema: Schema = "public",
    table_prefix: Prefix = "outbox",
    application_role: ApplicationRoles = None,
    checker_role: CheckerRoles = None,
) -> None:
    """Print the SQL that makes the tables and gives rights on them, for a migration of your own."""

    def run() -> None:
        table = CallbackTable(TableNames(schema, table_prefix))
        typer.echo(table.ddl(_grants(table, application_role, checker_role)), nl=False)

    guarded(run)


@app.command()
def verify(
    postgres_url: PostgresUrl = "",
    schema: Schema = "public",
    table_prefix: Prefix = "outbox",
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Check that the tables are what the protocol needs."""

    def run() -> None:
        table = CallbackTable(TableNames(schema, table_prefix))
        with database(postgres_url) as connection:
            table.verify(connection)
        _tell(table, "fine", as_json=as_json)

    guarded(run)


def _tell(table: CallbackTable, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"table": table.full_name, "state": state})
    else:
        typer.echo(f"table {table.full_name} is {state}")


def _grants(table: CallbackTable, applications: list[str] | None, checkers: list[str] | None) -> list[Grant]:
    return [*map(table.application_grant, applications or ()), *map(table.checker_grant, checkers or ())]
