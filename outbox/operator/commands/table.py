"""`outbox table create`: the tables in an application's database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from outbox._cli.setting_options import setting_options
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import written
from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_contract import require_contract
from outbox._service.output import Json, print_json
from outbox._settings.declared import PostgresSettings
from outbox.errors import UsageError
from outbox.migration import callback_grants, ddl, foreign_source, message_grants
from outbox.operator.settings import Given, PrintSql, database

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
    message_table: ForeignName = "",
    mark_column: MarkColumn = "",
    notify: Notify = None,
    print_sql: PrintSql = False,  # noqa: FBT002 - a flag
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the tables and give rights on them. Running it again changes nothing."""
    settings = PostgresSettings(**given)
    _refuse_more(message_table, mark_column, [application_role, checker_role, operator_role])
    application, checker, relay, operator = (
        one or () for one in (application_role, checker_role, relay_role, operator_role)
    )
    if print_sql:
        text = ddl(
            settings.table_names(),
            application_roles=application,
            checker_roles=checker,
            relay_roles=relay,
            operator_roles=operator,
            message_table=message_table,
            mark_column=mark_column,
            notify=notify,
        )
        typer.echo(text, nl=False)
        return
    if message_table:
        foreign, rights = foreign_source(settings.table_names(), message_table, relay, mark_column)
        with database(settings) as connection:
            foreign.create(connection, rights, notify=notify)
            require_contract(connection, foreign.places)
        _tell(foreign.full_source, (), as_json=as_json)
        return
    table, messages = CallbackTable(settings.table_names()), MessageTable(settings.table_names())
    with database(settings) as connection:
        table.create(connection, callback_grants(table, application, checker))
        messages.create(connection, message_grants(messages, application, checker, relay, operator), notify=notify)
        table.verify(connection)
        require_contract(connection, messages.places)
    _tell(table.full_name, _message_tables(messages), as_json=as_json)


def _message_tables(table: MessageTable) -> list[str]:
    names = table.names
    return [
        written(names.schema, name)
        for name in (names.message, names.discarded, names.delivered, names.source, names.publish_function)
    ]


def _tell(table: str, more: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"table": table, "state": "ready", "table_mode": list(more)})
        return
    typer.echo(f"table {table} is ready")
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
