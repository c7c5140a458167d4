"""`outbox inbox`: create, print and clean up the inbox table."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from outbox._cli.options import PostgresUrl, Prefix, Schema, database
from outbox._postgres.ddl import Grant
from outbox._postgres.inbox_table import PURGE_BATCH, InboxTable
from outbox._service.exit_codes import guarded
from outbox._service.output import Json, print_json
from outbox.settings import TableNames

app = typer.Typer(help="Create, print and clean up the inbox table, for consumers.", no_args_is_help=True)

ConsumerRoles = Annotated[
    list[str] | None, typer.Option("--consumer-role", help="Role that gets what a consumer needs; repeatable.")
]
PurgerRoles = Annotated[
    list[str] | None, typer.Option("--purger-role", help="Role that gets what `purge` needs; repeatable.")
]


@app.command()
def create(
    postgres_url: PostgresUrl = "",
    schema: Schema = "public",
    table_prefix: Prefix = "outbox",
    consumer_role: ConsumerRoles = None,
    purger_role: PurgerRoles = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Create the table and give rights on it. Running it again changes nothing."""

    def run() -> None:
        table = InboxTable(TableNames(schema, table_prefix))
        grants = _grants(table, consumer_role, purger_role)
        with database(postgres_url) as connection:
            table.create(connection, grants)
        if as_json:
            print_json({"table": table.full_name, "state": "ready"})
        else:
            typer.echo(f"table {table.full_name} is ready")

    guarded(run)


@app.command("sql")
def print_sql(
    schema: Schema = "public",
    table_prefix: Prefix = "outbox",
    consumer_role: ConsumerRoles = None,
    purger_role: PurgerRoles = None,
) -> None:
    """Print the SQL that makes the table and gives rights on it, for a migration of your own."""

    def run() -> None:
        table = InboxTable(TableNames(schema, table_prefix))
        typer.echo(table.ddl(_grants(table, consumer_role, purger_role)), nl=False)

    guarded(run)


@app.command()
def purge(
    keep_days: Annotated[
        float, typer.Option(help="Age that is kept, in days: longer than a message can come again, see the guide.")
    ],
    postgres_url: PostgresUrl = "",
    schema: Schema = "public",
    table_prefix: Prefix = "outbox",
    group: Annotated[str | None, typer.Option(help="Consumer group; all by default.")] = None,
    batch: Annotated[int, typer.Option(help="Rows that are deleted in one transaction.")] = PURGE_BATCH,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Delete what was handled longer ago than a given age, in batches."""

    def run() -> None:
        table = InboxTable(TableNames(schema, table_prefix))
        with database(postgres_url) as connection:
            count = table.purge(connection, timedelta(days=keep_days), group, batch)
        if as_json:
            print_json({"table": table.full_name, "rows_deleted": count})
        else:
            typer.echo(f"{count} rows deleted from {table.full_name}")

    guarded(run)


def _grants(table: InboxTable, consumers: list[str] | None, purgers: list[str] | None) -> list[Grant]:
    return [*map(table.consumer_grant, consumers or ()), *map(table.purger_grant, purgers or ())]
