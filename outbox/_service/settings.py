"""Settings of the services: environment first (`OUTBOX_…`), then the TOML file that `OUTBOX_CONFIG` names."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from outbox._kafka.topic_contract import Contract, contract_of
from outbox._service.logs import LIBRDKAFKA
from outbox._service.redaction import is_connection_string
from outbox.errors import ConfigurationError
from outbox.protocol.names import DEFAULT_CHANNEL, Channel
from outbox.settings import kafka_properties, read_toml, refuse_properties

CONFIG_VARIABLE = "OUTBOX_CONFIG"


def _properties(value: Any) -> dict[str, str]:
    try:
        return kafka_properties(value)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _path(value: Any) -> Any:
    """Refuse a connection string where a path belongs, without showing it.

    Raises:
        ValueError: It is a connection string.
    """
    if is_connection_string(str(value)):
        raise ValueError("this is a connection string, and the setting takes the path of a file that holds one")
    return value


def refuse_ours(kafka: dict[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Refuse properties that a service sets itself, with the reason, as a validator does.

    Raises:
        ValueError: One of them is given.
    """
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


Milliseconds = Annotated[int, Unit("ms")]
Bytes = Annotated[int, Unit("bytes")]
SecretFile = Annotated[Path, BeforeValidator(_path)]
"""Path of a file that holds a secret."""
KafkaProperties = Annotated[dict[str, str], NoDecode, BeforeValidator(_properties)]


class ServiceSettings(BaseSettings):
    """What relay and checker have in common.

    Each number has a unit, and each field a description: `--help` and docs/operations/settings.md show them.
    """

    model_config = SettingsConfigDict(env_prefix="OUTBOX_", extra="ignore", frozen=True)

    channel: str = Field(DEFAULT_CHANNEL, description="Channel that this process serves.")
    bootstrap_servers: str = Field(description="Kafka's bootstrap servers, host:port, separated by commas.")
    kafka: KafkaProperties = Field(
        default_factory=dict,
        repr=False,
        description="More librdkafka properties, such as TLS and SASL: a table, in the environment a JSON object.",
    )
    profile: Literal["production", "development"] = Field(
        "production", description="development: topics need no second replica, and may lose messages."
    )
    contract_interval: Milliseconds = Field(
        60_000,
        ge=1,
        description="Interval between two checks of the topics' configuration; they also detect deleted topics.",
    )
    http_port: Annotated[int, Unit("port")] = Field(
        0, ge=0, le=65_535, description="Port of /livez, /readyz and /metrics; 0: none."
    )
    http_host: str = Field("127.0.0.1", description="Address that they listen on.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug: also each transaction, with its offsets."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="auto: text with a progress line on a terminal, else JSON."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Command line, environment, then the TOML file.

        Raises:
            ConfigurationError: The file is missing or malformed; pydantic would pass over a missing one.
        """
        del dotenv_settings, file_secret_settings
        file = os.environ.get(CONFIG_VARIABLE)
        if not file:
            return (init_settings, env_settings)
        read_toml(Path(file))
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls, file))

    def channel_names(self) -> Channel:
        """Return the channel's names."""
        return Channel(self.channel)

    def connection(self) -> dict[str, str]:
        """Librdkafka properties for a client that is asked now and then: its errors are raised, it logs nothing."""
        return {"log_level": "0", "bootstrap.servers": self.bootstrap_servers, **self.kafka}

    def polled_connection(self) -> dict[str, Any]:
        """Return the same for a client that is polled all the time, and so hands its log lines over to ours."""
        return {"logger": logging.getLogger(LIBRDKAFKA), "bootstrap.servers": self.bootstrap_servers, **self.kafka}

    def contract(self) -> Contract:
        """Return what the site asks of its topics."""
        return contract_of(self.profile)
