"""Settings that the library's subcommands share, and the connections that they make."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import psycopg
from pydantic import Field

from outbox._postgres.dsn import connect_dsn, connection_problem
from outbox._service.exit_codes import NO_KAFKA
from outbox._service.settings import (
    AllowedTopics,
    CheckerDatabase,
    KafkaSettings,
    MessageTables,
    OperatorName,
    PostgresSettings,
    SiteSettings,
)
from outbox.errors import ConfigurationError


class ChannelSettings(KafkaSettings):
    """Settings of the subcommands that need Kafka."""

    # Without it the command names the ways to give it.
    bootstrap_servers: str = Field("", description="Kafka's bootstrap servers, host:port, separated by commas.")


class DatabaseSettings(PostgresSettings):
    """Settings of the subcommands that need Postgres."""


class TableCommandSettings(ChannelSettings, MessageTables):
    """Settings of the subcommands that look at message tables, too."""


class RightsSettings(ChannelSettings, AllowedTopics, MessageTables):
    """Settings of the subcommand that prints rights: the names for which a relay needs some."""


class DecisionSettings(OperatorName, TableCommandSettings):
    """Settings of the subcommands that decide on discarded transactions."""


class SkipSettings(OperatorName, ChannelSettings):
    """Settings of `skip`."""


class ContractSettings(ChannelSettings, SiteSettings):
    """Settings of the subcommands that look at the topics' contract."""


class DoctorSettings(DatabaseSettings, RightsSettings):
    """Settings of the doctor: of Kafka and Postgres, of message tables, of the allow-list and of the checker."""

    databases: dict[str, CheckerDatabase] = Field(
        default_factory=dict, description="Databases of the checker, by name, as tables of the TOML file."
    )

    def exclusive_tables(self) -> Iterable[tuple[str, Hashable]]:
        """See `LayeredSettings`: the message tables and foreign tables, and the callback tables of the checker."""
        yield from super().exclusive_tables()
        for name, one in self.databases.items():
            yield f"database {name}", one.place()

    def default_place(self) -> Hashable:
        """Return where the tables are that `postgres_url` names."""
        return self.postgres_url, self.postgres_url_file, self.table_schema, self.table_prefix


TABLE_NAMES = ("table_schema", "table_prefix")
"""Options of the subcommands that only print SQL."""

Given = dict[str, Any]
"""Settings that the command line gives."""


def connection(settings: KafkaSettings) -> dict[str, Any]:
    """Return librdkafka properties for a client."""
    if not settings.bootstrap_servers:
        raise ConfigurationError(NO_KAFKA)
    return settings.client_properties()


def database(settings: PostgresSettings) -> psycopg.Connection[Any]:
    """Connect in autocommit.

    Raises:
        ConfigurationError: No database is given, or it cannot be reached; the message holds no password.
    """
    url = settings.connection_string()
    if not url:
        raise ConfigurationError("the database is not named: set OUTBOX_POSTGRES_URL or give --postgres-url")
    try:
        return connect_dsn(url, autocommit=True, connect_timeout=5)
    except psycopg.Error as error:
        raise ConfigurationError(f"The database cannot be reached. {connection_problem(error, url)}") from error
