"""`outbox doctor`: one line and one fix for each finding."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from outbox.callback_table import CallbackTable
from outbox.commands.options import (
    CHANNEL_DEFAULT,
    BootstrapServers,
    ChannelName,
    PostgresUrl,
    Prefix,
    Profile,
    Schema,
    connection,
    database,
)
from outbox.contract import ProfileName, contract_of
from outbox.doctor import examine_database, examine_kafka, examine_versions
from outbox.errors import ConfigurationError
from outbox.finding import Finding
from outbox.protocol.names import Channel
from outbox.service.exits import guarded
from outbox.service.findings import show_findings
from outbox.service.output import Json
from outbox.settings import TableNames

app = typer.Typer(help="Check broker, channel, table, grants and versions.")


@app.callback(invoke_without_command=True)
def doctor(
    bootstrap_servers: BootstrapServers = "",
    postgres_url: PostgresUrl = "",
    channel: ChannelName = CHANNEL_DEFAULT,
    schema: Schema = "public",
    table_prefix: Prefix = "outbox",
    profile: Profile = ProfileName.PRODUCTION,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Check everything that the outbox needs; ends with 2 if something is wrong."""

    def run() -> None:
        findings = list(examine_versions())
        findings += examine_kafka(connection(bootstrap_servers), Channel(channel), contract_of(profile))
        findings += _database(postgres_url, CallbackTable(TableNames(schema, table_prefix)))
        show_findings(findings, as_json=as_json)

    guarded(run)


def _database(url: str, table: CallbackTable) -> Iterator[Finding]:
    try:
        opened = database(url)
    except ConfigurationError as error:
        yield Finding("postgres", str(error), "start Postgres, or correct OUTBOX_POSTGRES_URL")
        return
    with opened:
        yield from examine_database(opened, table)
