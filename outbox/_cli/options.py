"""Options that the library's subcommands share, and the connections that they make."""

from __future__ import annotations

import os
from typing import Annotated, Any

import psycopg
import typer

from outbox._kafka.topic_contract import ProfileName
from outbox._postgres.dsn import connect_dsn, connection_problem
from outbox.errors import ConfigurationError
from outbox.protocol.names import DEFAULT_CHANNEL
from outbox.settings import kafka_properties

BootstrapServers = Annotated[
    str, typer.Option(envvar="OUTBOX_BOOTSTRAP_SERVERS", help="Kafka's bootstrap servers, host:port.")
]
ChannelName = Annotated[str, typer.Option("--channel", envvar="OUTBOX_CHANNEL", help="Channel.")]
PostgresUrl = Annotated[
    str, typer.Option(envvar="OUTBOX_POSTGRES_URL", help="Connection string of the database.", show_default=False)
]
Schema = Annotated[str, typer.Option(envvar="OUTBOX_SCHEMA", help="Schema of the callback tables.")]
Prefix = Annotated[str, typer.Option(envvar="OUTBOX_TABLE_PREFIX", help="Beginning of the tables' names.")]
Profile = Annotated[
    ProfileName,
    typer.Option(envvar="OUTBOX_PROFILE", help="development: accept topics with one replica.", case_sensitive=False),
]
CHANNEL_DEFAULT = DEFAULT_CHANNEL


def connection(bootstrap_servers: str) -> dict[str, str]:
    """Librdkafka properties for a client: the servers, and what OUTBOX_KAFKA adds (a JSON object).

    Raises:
        ConfigurationError: No servers are given.
    """
    if not bootstrap_servers:
        raise ConfigurationError("Kafka is not named: set OUTBOX_BOOTSTRAP_SERVERS or give --bootstrap-servers")
    return {"bootstrap.servers": bootstrap_servers, **kafka_properties(os.environ.get("OUTBOX_KAFKA", "{}"))}


def database(url: str) -> psycopg.Connection[Any]:
    """Connect in autocommit.

    Raises:
        ConfigurationError: No database is given, or it cannot be reached; the message holds no password.
    """
    if not url:
        raise ConfigurationError("the database is not named: set OUTBOX_POSTGRES_URL or give --postgres-url")
    try:
        return connect_dsn(url, autocommit=True, connect_timeout=5)
    except psycopg.Error as error:
        raise ConfigurationError(f"The database cannot be reached. {connection_problem(error, url)}") from error
