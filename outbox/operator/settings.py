"""Settings that the library's subcommands share, and the connection that they make."""

from collections.abc import Hashable
from typing import Any, ClassVar

import psycopg

from outbox._postgres.dsn import connect_dsn, connection_problem
from outbox._service.settings import ContractProfile
from outbox._settings import declared
from outbox.errors import ConfigurationError


class RightsSettings(declared.AllowedTopics, declared.MessageTables, declared.ChannelSettings):
    """Settings of the subcommand that prints rights: the names for which a relay needs some."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("channel",)


class ContractSettings(ContractProfile, declared.ChannelSettings):
    """Settings of the subcommands that look at the topics' contract."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("profile", *declared.ChannelSettings.OPTIONS)


class DoctorSettings(declared.DatabasesSettings, RightsSettings, ContractSettings, declared.PostgresSettings):
    """Settings of the doctor: of Kafka and Postgres, of message tables, of the allow-list and of the checker."""

    OPTIONS: ClassVar[tuple[str, ...]] = (*ContractSettings.OPTIONS, "postgres_url", "postgres_url_file", "tables")

    def default_place(self) -> Hashable:
        return self.postgres_url, self.postgres_url_file, self.schema, self.table_prefix


class OperatorSettings(
    declared.DiscardSettings, declared.CheckedDatabases, declared.MessageTables, declared.ChannelSettings
):
    """Settings of the subcommands that look at halves and rows: those of Kafka, of all databases and message tables."""

    OPTIONS: ClassVar[tuple[str, ...]] = (*declared.ChannelSettings.OPTIONS, "tables")


class DecisionSettings(declared.OperatorName, declared.CheckAge, OperatorSettings):
    """Settings of the subcommands that decide: those, who decides, and the relay's age of a first check."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("operator", *OperatorSettings.OPTIONS)


Given = dict[str, Any]  # settings that the command line gives


def database(settings: declared.PostgresSettings | declared.CheckerDatabase, **more: Any) -> psycopg.Connection[Any]:
    url = settings.connection_string()
    if not url:
        raise ConfigurationError("the database is not named: set OUTBOX_POSTGRES_URL or give --postgres-url")
    try:
        return connect_dsn(url, autocommit=True, connect_timeout=5, options="-c search_path=pg_catalog", **more)
    except psycopg.Error as error:
        raise ConfigurationError(f"The database cannot be reached. {connection_problem(error, url)}") from error
