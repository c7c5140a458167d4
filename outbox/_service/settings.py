"""Settings of the services: environment first (`OUTBOX_…`), then the TOML file that `OUTBOX_CONFIG` names."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from outbox._kafka.admin import reconnecting
from outbox._kafka.client_log import ClientLog
from outbox._kafka.topic_contract import Contract, contract_of
from outbox._postgres.foreign_layout import After, Layout, LayoutName, make_layout
from outbox._rules.qualified_name import QualifiedName, check_name
from outbox._security.secret_files import read_secret
from outbox._service.channels.channel_tables import channel_tables, values_of_channel
from outbox._service.logs import LIBRDKAFKA
from outbox._service.redaction import is_connection_string
from outbox.errors import ConfigurationError
from outbox.protocol.names import DEFAULT_CHANNEL, Channel
from outbox.settings import (
    TableNames,
    channel_names,
    kafka_properties,
    read_toml,
    refuse_properties,
    usable_properties,
)

CONFIG_VARIABLE = "OUTBOX_CONFIG"

_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,249}\*?|\*")
_SOURCE = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_FOREIGN = frozenset({"message_table", "after", "mark_column", "columns", "topic", "group", "additional_placement"})
"""Settings of a table that only a foreign table has."""


def _properties(value: Any) -> dict[str, str]:
    try:
        return kafka_properties(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _path(value: Any) -> Any:
    """Refuse a connection string where a path belongs, without showing it."""
    if is_connection_string(str(value)):
        raise ValueError("this is a connection string, and the setting takes the path of a file that holds one")
    return value


def refuse_ours(kafka: dict[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Refuse properties that a service sets itself, with the reason, as a validator does."""
    try:
        refuse_properties(kafka, ours)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return kafka


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a setting, for `--help` and the documents."""

    name: str


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A setting whose command line option may be given several times.

    Args:
        metavar: What is given each time: `NAME=VALUE` for a table, else one of several values.
    """

    metavar: str


@dataclass(frozen=True, slots=True)
class Flag:
    """The command line option of a setting that is not named after it, such as `--from`."""

    name: str


Milliseconds = Annotated[int, Unit("ms")]
Bytes = Annotated[int, Unit("bytes")]
SecretFile = Annotated[Path, BeforeValidator(_path)]
KafkaProperties = Annotated[dict[str, str], NoDecode, BeforeValidator(_properties)]


_CLIENT_LOG = ClientLog(logging.getLogger(LIBRDKAFKA))
"""Takes the lines of all clients of a process: an outage brings one a second from each."""


class LayeredSettings(BaseSettings):
    """Settings that are read in layers: command line, environment, TOML file.

    Each number has a unit, and each field a description: `--help` and the documents show them.
    """

    model_config = SettingsConfigDict(env_prefix="OUTBOX_", extra="ignore", frozen=True)

    MOST_USED: ClassVar[tuple[str, ...]] = ()
    """Fields that `--help` shows first, at most ten; empty: all alike."""

    RIVALS: ClassVar[tuple[frozenset[str], ...]] = ()
    """Settings of which one replaces the others: a layer that has one hides all of them in the layers below."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[Any],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the layers: command line, environment, then the TOML file.

        Raises:
            ConfigurationError: The file is missing or malformed; pydantic would pass over a missing one.
        """
        del dotenv_settings, file_secret_settings
        layers = [_Layer(settings_cls, init_settings), _Layer(settings_cls, env_settings)]
        if file := os.environ.get(CONFIG_VARIABLE):
            read_toml(Path(file))
            layers.append(_FileLayer(settings_cls, TomlConfigSettingsSource(settings_cls, file)))
        return tuple(layers)

    def exclusive_tables(self) -> Iterable[tuple[str, Hashable]]:
        """Return the tables that no other channel may have: what each is, in words, and where it is."""
        return ()


class _Layer(PydanticBaseSettingsSource):
    """One layer, without the settings whose rival is in a layer above."""

    def __init__(self, settings_cls: type[LayeredSettings], source: PydanticBaseSettingsSource) -> None:
        super().__init__(settings_cls)
        self._type = settings_cls
        self._source = source

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the value of one field."""
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        """Return the values of this layer."""
        above = self.current_state.keys()
        hidden = {name for rivals in self._type.RIVALS if rivals & above for name in rivals}
        return {name: value for name, value in self._found().items() if name not in hidden}

    def _found(self) -> dict[str, Any]:
        return self._source()


class _FileLayer(_Layer):
    """The TOML file: of several channels, what the one that a layer above names has and inherits."""

    def _found(self) -> dict[str, Any]:
        """Return what the file has for one channel."""
        found = super()._found()
        if "channel" not in self._type.model_fields or not (tables := channel_tables(found)):
            return found
        if (name := self.current_state.get("channel")) is None:
            raise ConfigurationError(
                f"The file of OUTBOX_CONFIG has several channels: {', '.join(sorted(tables))}. "
                "Choose one of them with --channel or OUTBOX_CHANNEL."
            )
        return values_of_channel(found, str(name), self._type.RIVALS)


class KafkaSettings(LayeredSettings):
    """Which channel of which cluster."""

    channel: str = Field(DEFAULT_CHANNEL, description="Name of the channel: prefix of its internal topics.")
    bootstrap_servers: str = Field(description="Kafka's bootstrap servers, host:port, separated by commas.")
    kafka: KafkaProperties = Field(
        default_factory=dict,
        repr=False,
        description="More librdkafka properties, such as TLS and SASL: a table, in the environment a JSON object. "
        "A secret may be in a file (sasl.password_file), oauth_cb is package.module:function.",
    )

    def channel_names(self) -> Channel:
        """Return the channel's names."""
        return channel_names(self.channel)

    def connection(self) -> dict[str, Any]:
        """Return librdkafka properties for a client that is used now and then: its errors are raised, not logged."""
        return {"log_level": "0", **self.client_properties()}

    def client_properties(self) -> dict[str, Any]:
        """Return librdkafka properties for any client, with the secrets of files as they are at this moment."""
        return {"bootstrap.servers": self.bootstrap_servers, **reconnecting(usable_properties(self.kafka))}


class OperatorName(LayeredSettings):
    """Who decides."""

    operator: str = Field(
        "",
        pattern=r"^[^:()\x00-\x1f\x7f]{0,100}$",
        description="Your name; it is recorded beside the client's principal in Kafka. Default: the principal alone.",
    )


class SiteSettings(KafkaSettings):
    """What a site asks of its cluster."""

    profile: Literal["production", "development"] = Field(
        "production", description="development: topics need no second replica, and may lose messages."
    )

    def contract(self) -> Contract:
        """Return the required topic configuration."""
        return contract_of(self.profile)


class PostgresSettings(LayeredSettings):
    """One database with callback tables."""

    RIVALS = (frozenset({"postgres_url", "postgres_url_file"}),)

    postgres_url: SecretStr | None = Field(None, description="Connection string of the database.")
    postgres_url_file: SecretFile | None = Field(
        None, description="File that contains the connection string; read at each connect."
    )
    table_schema: Annotated[str, Flag("--schema")] = Field(
        "public", validation_alias=AliasChoices("OUTBOX_SCHEMA", "schema"), description="Schema of the outbox tables."
    )
    table_prefix: str = Field("outbox", description="Prefix of the table names.")

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if self.postgres_url is not None and self.postgres_url_file is not None:
            raise ValueError("give either postgres_url or postgres_url_file")
        return self

    def connection_string(self) -> str:
        """Return the connection string as it is at this moment; empty if no database is named."""
        if self.postgres_url_file is not None:
            return read_secret(f"postgres_url_file {self.postgres_url_file}", self.postgres_url_file)
        return self.postgres_url.get_secret_value() if self.postgres_url else ""

    def table_names(self) -> TableNames:
        """Return schema and prefix of the tables."""
        return TableNames(self.table_schema, self.table_prefix)


class Database(BaseModel):
    """A database and how to connect to it, as a table of a TOML file names it."""

    model_config = ConfigDict(extra="forbid", frozen=True)  # a misspelt setting must not take its default

    dsn: SecretStr | None = Field(None, description="Connection string of the service's role.")
    dsn_file: SecretFile | None = Field(
        None, description="File that contains the connection string; read at each connect."
    )

    @model_validator(mode="after")
    def _one_dsn(self) -> Self:
        if (self.dsn is None) == (self.dsn_file is None):
            raise ValueError("give either dsn or dsn_file")
        return self

    def connection_string(self) -> str:
        """Return the connection string as it is at this moment."""
        if self.dsn_file is None:
            return self.dsn.get_secret_value() if self.dsn else ""
        return read_secret(f"dsn_file {self.dsn_file}", self.dsn_file)


Durability = Literal["production", "development"]
Switch = Literal["on", "off"]


class CheckerDatabase(Database):
    """One database and the producer groups that write to it."""

    dsn: SecretStr | None = Field(None, description="Connection string of the checker's role.")
    groups: tuple[str, ...] = Field(("*",), description="Producer groups: exact names, or prefixes that end in '*'.")
    table_schema: str = Field("public", alias="schema", description="Schema of the callback tables.")
    table_prefix: str = Field("outbox", description="Prefix of the callback table names.")
    durability: Durability | None = Field(
        None, description="Durability that the server must have. Default: the profile."
    )
    synchronous_standby: bool = Field(
        default=False, description="Require that each COMMIT waits for a standby; refuse to start otherwise."
    )
    breaker: Switch | None = Field(None, description="Circuit breaker of this database. Default: breaker.")
    breaker_limit: Annotated[int | None, Unit("transactions")] = Field(
        None, ge=1, description="Limit of this database's circuit breaker. Default: breaker_limit."
    )

    def place(self) -> Hashable:
        """Return what distinguishes its callback tables from those of other databases."""
        return self.dsn, self.dsn_file, self.table_schema, self.table_prefix

    def tables(self) -> TableNames:
        """Where the callback tables are."""
        return TableNames(self.table_schema, self.table_prefix)


class TableSettings(Database):
    """One message table, or foreign table, that the relay delivers from."""

    dsn: SecretStr | None = Field(None, description="Connection string of the relay's role. No transaction pooler.")
    table_schema: str = Field(
        "public",
        alias="schema",
        description="Schema of the message table; of a foreign table, of what the relay keeps beside it.",
    )
    table_prefix: str = Field(
        "outbox", description="Prefix of the names of these tables; each foreign table needs its own."
    )
    keep_settled_ms: Milliseconds = Field(
        86_400_000, ge=0, description="Age up to which the evidence of delivered messages is kept."
    )
    layout: LayoutName = Field(
        "outbox",
        description="Columns of the table. debezium and mapping are for foreign tables (docs/foreign_tables.md).",
    )
    message_table: str = Field("", description="Of a foreign table: its schema and name, with a dot between.")
    after: After = Field("delete", description="Of a foreign table: what the relay does with a delivered row.")
    mark_column: str = Field("delivered_at", description="With after=mark: the column that the relay sets.")
    columns: dict[str, str] = Field(
        default_factory=dict, description="Of a foreign table: names of its columns, by what they hold."
    )
    topic: str = Field(
        "",
        description="Of a foreign table: the real topic; ${routedByValue} in it is the value of the column topic.",
    )
    group: str = Field(
        "",
        description="Of a foreign table: the producer group. Default: the column group, else the name of the source.",
    )
    additional_placement: str = Field(
        "",
        description="Of a foreign table: columns for headers, as in Debezium's table.fields.additional.placement.",
    )

    @model_validator(mode="after")
    def _fits_layout(self) -> Self:
        if not self.is_foreign:
            if given := self.model_fields_set & _FOREIGN:
                raise ValueError(
                    f"{', '.join(sorted(given))} is for a foreign table. Set layout to debezium or mapping."
                )
            return self
        try:
            self.names().check_foreign(*self.foreign_name())
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        self.foreign_layout()
        check_name(self.mark_column)
        if self.after == "delete" and "mark_column" in self.model_fields_set:
            raise ValueError("mark_column is given and rows are deleted. Set after to mark, or remove it.")
        if "keep_settled_ms" in self.model_fields_set:
            raise ValueError("keep_settled_ms is given, and a foreign table has no evidence. Remove it.")
        return self

    @property
    def is_foreign(self) -> bool:
        """Return whether the application made the table."""
        return self.layout != "outbox"

    def foreign_name(self) -> QualifiedName:
        """Return the name of the foreign table."""
        if not self.message_table:
            raise ValueError(f"layout is {self.layout} and message_table is missing. Name the table as schema.table.")
        return QualifiedName.parse(self.message_table)

    def foreign_layout(self) -> Layout:
        """Return which column of the foreign table holds what."""
        return make_layout(self.layout, self.columns, self.topic, self.group, self.additional_placement)

    def names(self) -> TableNames:
        """Return where the message table is; of a foreign table, where the relay's tables beside it are."""
        return TableNames(self.table_schema, self.table_prefix)

    def message_names(self) -> TableNames:
        """Return where the message table is, for commands that read no foreign table."""
        if self.is_foreign:
            raise ConfigurationError(
                f"{self.message_table} is a foreign table, which this command does not read (docs/foreign_tables.md)."
            )
        return self.names()


NO_TABLES = "no message table is configured (setting tables)"
"""Why rows of table mode are not looked for."""


class MessageTables(LayeredSettings):
    """The message tables of a channel, by the names of their table sources."""

    tables: dict[str, TableSettings] = Field(
        default_factory=dict,
        description="Message tables to deliver from (table mode), by name, as tables of the TOML file.",
    )

    @field_validator("tables")
    @classmethod
    def _check_names(cls, tables: dict[str, TableSettings]) -> dict[str, TableSettings]:
        for name in tables:
            if not _SOURCE.fullmatch(name):
                raise ValueError(f"{name!r} is not allowed: use at most 63 of a-z, 0-9, '_' and '-', a letter first")
        foreign = Counter((table.dsn, table.dsn_file, table.message_table) for table in tables.values())
        for (_, _, message_table), count in foreign.items():
            if message_table and count > 1:
                raise ValueError(f"{message_table} is the message_table of {count} sources. Give it to one of them.")
        return tables

    def exclusive_tables(self) -> Iterable[tuple[str, Hashable]]:
        """See `LayeredSettings`: the message tables and foreign tables."""
        for name, table in self.tables.items():
            place = table.message_table or (table.table_schema, table.names().message)
            yield f"table source {name}", (table.dsn, table.dsn_file, place)


class AllowedTopics(SiteSettings):
    """To which real topics producer groups may write."""

    allowed_topics: dict[str, tuple[str, ...]] | None = Field(
        None,
        description="Allowed real topics by producer group: names, or prefixes that end in '*'. "
        "Required with profile production.",
    )

    @field_validator("allowed_topics")
    @classmethod
    def _check_patterns(cls, allowed: dict[str, tuple[str, ...]] | None) -> dict[str, tuple[str, ...]] | None:
        for pattern in chain(allowed or (), *(allowed or {}).values()):
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern!r} is neither a name nor a prefix that ends in '*'")
        return allowed


class CheckAge(LayeredSettings):
    """When a transaction is old enough to be checked, or decided by hand."""

    transaction_timeout_ms: Milliseconds = Field(6_000, ge=1, description="Age of a half at its first check.")


class LogSettings(LayeredSettings):
    """How a process that runs for long logs."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug: also each transaction, with its offsets."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="auto: text with a progress line on a terminal, else JSON."
    )


class ServiceSettings(LogSettings, SiteSettings):
    """What relay and checker have in common."""

    contract_interval_ms: Milliseconds = Field(
        60_000,
        ge=1,
        description="Interval between two checks of the topics' configuration; they also detect deleted topics.",
    )
    http_port: Annotated[int, Unit("port")] = Field(
        0, ge=0, le=65_535, description="Port of /livez, /readyz and /metrics; 0: none."
    )
    http_host: str = Field("127.0.0.1", description="Address on which the HTTP port listens.")

    def polled_connection(self) -> dict[str, Any]:
        """Return librdkafka properties for a client that is polled all the time: it logs to the service's log."""
        return {"logger": _CLIENT_LOG, **self.client_properties()}
