"""`outbox doctor`: one line and one fix for each finding."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from outbox._cli.options import (
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
from outbox._kafka.topic_contract import ProfileName, contract_of
from outbox._operations.doctor import examine_database, examine_kafka, examine_versions
from outbox._operations.finding import Finding
from outbox._postgres.callback_table import CallbackTable
from outbox._service.exit_codes import guarded
from outbox._service.findings import show_findings
from outbox._service.output import Json
from outbox.errors import ConfigurationError
from outbox.protocol.names import Channel
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
