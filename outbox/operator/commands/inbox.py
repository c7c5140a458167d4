"""`outbox inbox purge`: clean up the inbox table."""

from datetime import timedelta
from typing import Annotated

import typer

from outbox._cli.setting_options import setting_options
from outbox._postgres.inbox_table import InboxTable
from outbox._settings.declared import PostgresSettings
from outbox.operator.settings import Given, database

app = typer.Typer(help="Clean up the inbox table of consumers.", no_args_is_help=True, callback=lambda: None)


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
