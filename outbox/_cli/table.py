"""`outbox table`: create, print and verify the tables in an application's database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from outbox._cli.options import TABLE_NAMES, DatabaseSettings, Given, database
from outbox._cli.setting_options import setting_options
from outbox._cli.table_resume import resume
from outbox._operations.publishing_rights import examine_publishing
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import written
from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_contract import Table, exists, require_contract
from outbox._service.output import Json, print_json
from outbox.errors import CallbackTableError, UsageError
from outbox.migration import callback_grants, ddl, foreign_source, message_grants

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
Notify = Annotated[
    bool | None,
    typer.Option(
        "--notify/--no-notify",
        help="Create or drop the trigger by which commits notify the relay. Default: leave it as it is.",
    ),
]


@app.command()
@setting_options(DatabaseSettings)
def create(
    given: Given,
    application_role: ApplicationRoles = None,
    checker_role: CheckerRoles = None,
    relay_role: RelayRoles = None,
    operator_role: OperatorRoles = None,
    message_table: ForeignName = "",
    mark_column: MarkColumn = "",
    notify: Notify = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the tables and give rights on them. Running it again changes nothing."""
    settings = DatabaseSettings(**given)
    _refuse_more(message_table, mark_column, [application_role, checker_role, operator_role])
    if message_table:
        foreign, rights = foreign_source(settings.table_names(), message_table, relay_role or (), mark_column)
        with database(settings) as connection:
            foreign.create(connection, rights, notify=notify)
            require_contract(connection, foreign.places)
        _tell(foreign.full_source, "ready", as_json=as_json)
        return
    table, messages = CallbackTable(settings.table_names()), MessageTable(settings.table_names())
    with database(settings) as connection:
        table.create(connection, callback_grants(table, application_role or (), checker_role or ()))
        roles = application_role or (), checker_role or (), relay_role or (), operator_role or ()
        grants = message_grants(messages, *roles)
        messages.create(connection, grants, notify=notify)
        table.verify(connection)
        require_contract(connection, messages.places)
    _tell(table.full_name, "ready", as_json=as_json, more=_message_tables(messages))


@app.command("sql")
@setting_options(DatabaseSettings, only=TABLE_NAMES)
def print_sql(
    given: Given,
    application_role: ApplicationRoles = None,
    checker_role: CheckerRoles = None,
    relay_role: RelayRoles = None,
    operator_role: OperatorRoles = None,
    message_table: ForeignName = "",
    mark_column: MarkColumn = "",
    notify: Notify = None,
) -> None:
    """Print the SQL that makes the tables and gives rights on them, for a migration of your own."""
    settings = DatabaseSettings(**given)
    _refuse_more(message_table, mark_column, [application_role, checker_role, operator_role])
    text = ddl(
        settings.table_names(),
        application_roles=application_role or (),
        checker_roles=checker_role or (),
        relay_roles=relay_role or (),
        operator_roles=operator_role or (),
        message_table=message_table,
        mark_column=mark_column,
        notify=notify,
    )
    typer.echo(text, nl=False)


@app.command()
@setting_options(DatabaseSettings)
def verify(
    given: Given,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Check that the tables are what the protocol needs."""
    settings = DatabaseSettings(**given)
    table, messages = CallbackTable(settings.table_names()), MessageTable(settings.table_names())
    with database(settings) as connection:
        table.verify(connection)
        is_there = exists(connection, messages.places[Table.MESSAGE])
        require_contract(connection, messages.places if is_there else {})
        for found in examine_publishing(connection, table.names):
            if not found.fine:
                raise CallbackTableError(f"{found.problem}. Fix: {found.fix}")
    _tell(table.full_name, "fine", as_json=as_json, more=_message_tables(messages) if is_there else ())


def _message_tables(table: MessageTable) -> list[str]:
    names = table.names
    return [
        written(names.schema, name)
        for name in (names.message, names.discarded, names.delivered, names.source, names.publish_function)
    ]


def _tell(table: str, state: str, *, as_json: bool, more: Sequence[str] = ()) -> None:
    if as_json:
        print_json({"table": table, "state": state, "table_mode": list(more)})
        return
    typer.echo(f"table {table} is {state}")
    if more:
        typer.echo(f"for table mode: {', '.join(more)}")


def _refuse_more(message_table: str, mark_column: str, others: list[list[str] | None]) -> None:
    """Refuse options that have no meaning together."""
    if message_table and any(others):
        raise UsageError(
            "--message-table has no roles but --relay-role: the application owns the table. Omit the others."
        )
    if mark_column and not message_table:
        raise UsageError("--mark-column is given without --message-table. Give both, or neither.")
