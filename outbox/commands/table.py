"""`outbox table`: create, print and verify the callback tables."""

from __future__ import annotations

import typer

from outbox.callback_table import CallbackTable
from outbox.commands.options import PostgresUrl, Prefix, Schema, database
from outbox.service.exits import guarded
from outbox.settings import TableNames

app = typer.Typer(help="Create, print and verify the callback tables.", no_args_is_help=True)


@app.command()
def create(postgres_url: PostgresUrl = "", schema: Schema = "public", table_prefix: Prefix = "outbox") -> None:
    """Create the tables. Running it again changes nothing."""

    def run() -> None:
        table = CallbackTable(TableNames(schema, table_prefix))
        with database(postgres_url) as connection:
            table.create(connection)
            table.verify(connection)
        typer.echo(f"table {table.names.schema}.{table.names.transaction} is ready")

    guarded(run)


@app.command("sql")
def print_sql(schema: Schema = "public", table_prefix: Prefix = "outbox") -> None:
    """Print the SQL that makes the tables, for a migration of your own."""
    guarded(lambda: typer.echo(CallbackTable(TableNames(schema, table_prefix)).ddl(), nl=False))


@app.command()
def verify(postgres_url: PostgresUrl = "", schema: Schema = "public", table_prefix: Prefix = "outbox") -> None:
    """Check that the tables are what the protocol needs."""

    def run() -> None:
        table = CallbackTable(TableNames(schema, table_prefix))
        with database(postgres_url) as connection:
            table.verify(connection)
        typer.echo(f"table {table.names.schema}.{table.names.transaction} is fine")

    guarded(run)
