"""`outbox table`: create, print and verify the tables in an application's database."""

from __future__ import annotations

from typing import Annotated

import typer

from outbox._cli.options import TABLE_NAMES, DatabaseSettings, Given, database
from outbox._cli.setting_options import setting_options
from outbox._cli.table_resume import resume
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import Grant
from outbox._postgres.message_table import MessageTable
from outbox._service.output import Json, print_json

app = typer.Typer(
    help="Create, print and verify the callback tables and the message table; resume a halted table source.",
    no_args_is_help=True,
)
app.command("resume")(resume)

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


@app.command()
@setting_options(DatabaseSettings)
def create(
    given: Given,
    application_role: ApplicationRoles = None,
    checker_role: CheckerRoles = None,
    relay_role: RelayRoles = None,
    operator_role: OperatorRoles = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the tables and give rights on them. Running it again changes nothing."""
    settings = DatabaseSettings(**given)
    table, messages = CallbackTable(settings.table_names()), MessageTable(settings.table_names())
    with database(settings) as connection:
        table.create(connection, _grants(table, application_role, checker_role))
        messages.create(
            connection, _message_grants(messages, application_role, checker_role, relay_role, operator_role)
        )
        table.verify(connection)
    _tell(table, "ready", as_json=as_json)


@app.command("sql")
@setting_options(DatabaseSettings, only=TABLE_NAMES)
def print_sql(
    given: Given,
    application_role: ApplicationRoles = None,
    checker_role: CheckerRoles = None,
    relay_role: RelayRoles = None,
    operator_role: OperatorRoles = None,
) -> None:
    """Print the SQL that makes the tables and gives rights on them, for a migration of your own."""
    settings = DatabaseSettings(**given)
    table, messages = CallbackTable(settings.table_names()), MessageTable(settings.table_names())
    typer.echo(table.ddl(_grants(table, application_role, checker_role)), nl=False)
    typer.echo(
        messages.ddl(_message_grants(messages, application_role, checker_role, relay_role, operator_role)), nl=False
    )


@app.command()
@setting_options(DatabaseSettings)
def verify(
    given: Given,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Check that the tables are what the protocol needs."""
    settings = DatabaseSettings(**given)
    table = CallbackTable(settings.table_names())
    with database(settings) as connection:
        table.verify(connection)
    _tell(table, "fine", as_json=as_json)


def _tell(table: CallbackTable, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"table": table.full_name, "state": state})
    else:
        typer.echo(f"table {table.full_name} is {state}")


def _grants(table: CallbackTable, applications: list[str] | None, checkers: list[str] | None) -> list[Grant]:
    return [*map(table.application_grant, applications or ()), *map(table.checker_grant, checkers or ())]


def _message_grants(
    table: MessageTable,
    applications: list[str] | None,
    checkers: list[str] | None,
    relays: list[str] | None,
    operators: list[str] | None,
) -> list[Grant]:
    return [
        *map(table.application_grant, applications or ()),
        *map(table.checker_grant, checkers or ()),
        *map(table.relay_grant, relays or ()),
        *map(table.operator_grant, operators or ()),
    ]
