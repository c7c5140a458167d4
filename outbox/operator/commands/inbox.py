"""`outbox inbox`: create and clean up the inbox table."""

from datetime import timedelta
from typing import Annotated

import typer

from outbox._cli.setting_options import setting_options
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.table_contract import require_contract
from outbox._settings.declared import PostgresSettings
from outbox.migration import inbox_ddl, inbox_grants
from outbox.operator.settings import Given, PrintSql, database

app = typer.Typer(help="Create and clean up the inbox table, for consumers.", no_args_is_help=True)

ConsumerRoles = Annotated[
    list[str] | None,
    typer.Option("--consumer-role", help="Grant the privileges of a consumer to this role; repeatable."),
]
PurgerRoles = Annotated[
    list[str] | None, typer.Option("--purger-role", help="Grant the privileges of `purge` to this role; repeatable.")
]


@app.command()
@setting_options(PostgresSettings)
def create(
    given: Given,
    consumer_role: ConsumerRoles = None,
    purger_role: PurgerRoles = None,
    print_sql: PrintSql = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the table and give rights on it. Running it again changes nothing."""
    settings = PostgresSettings(**given)
    consumers, purgers = consumer_role or (), purger_role or ()
    if print_sql:
        text = inbox_ddl(settings.table_names(), consumer_roles=consumers, purger_roles=purgers)
        typer.echo(text, nl=False)
        return
    table = InboxTable(settings.table_names())
    grants = inbox_grants(table, consumers, purgers)
    with database(settings) as connection:
        table.create(connection, grants)
        require_contract(connection, table.places)
    typer.echo(f"table {table.full_name} is ready")


@app.command()
@setting_options(PostgresSettings)
def purge(
    keep_days: Annotated[
        float, typer.Option(help="Age that is kept, in days: longer than a message can come again, see the guide.")
    ],
    given: Given,
    group: Annotated[str | None, typer.Option(help="Consumer group; all by default.")] = None,
) -> None:
    """Delete what was handled longer ago than a given age, in batches."""
    settings = PostgresSettings(**given)
    table = InboxTable(settings.table_names())
    with database(settings) as connection:
        count = table.purge(connection, timedelta(days=keep_days), group)
    typer.echo(f"{count} rows deleted from {table.full_name}")
