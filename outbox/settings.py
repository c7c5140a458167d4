"""Settings of the library: from arguments, from the environment (`OUTBOX_…`), from a TOML file."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import DEFAULT_CHANNEL, Channel, check_group

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,49}")

_OURS = {
    "acks": "a half must be stored by all in-sync replicas before the local transaction commits",
    "request.required.acks": "a half must be stored by all in-sync replicas before the local transaction commits",
    "delivery.timeout.ms": "publish_timeout bounds it",
    "enable.idempotence": "a retried half must not appear twice",
    "transactional.id": "halves are not sent in Kafka transactions",
    "partitioner": "the library chooses the half partition by ordering key",
    "message.timeout.ms": "publish_timeout bounds it",
    "group.id": "the library reads nothing as a consumer group",
}


@dataclass(frozen=True, slots=True)
class TableNames:
    """Where the callback tables are.

    Args:
        schema: Their schema.
        prefix: Beginning of their names.

    Raises:
        ConfigurationError: A name is not lower-case letters, digits and `_`, at most 50 characters.
    """

    schema: str = "public"
    prefix: str = "outbox"

    def __post_init__(self) -> None:
        """Check the names."""
        for name in (self.schema, self.prefix):
            if not _IDENTIFIER.fullmatch(name):
                raise ConfigurationError(
                    f"table name {name!r} is not allowed: use lower-case letters, digits and '_', at most 50"
                )

    @property
    def transaction(self) -> str:
        """The callback table."""
        return f"{self.prefix}_transaction"

    @property
    def meta(self) -> str:
        """Incarnation, schema version, purge watermarks."""
        return f"{self.prefix}_meta"

    @property
    def fence(self) -> str:
        """Takes the durability write of R9."""
        return f"{self.prefix}_fence"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an `Outbox` must know.

    Args:
        group: Producer group; unique to a service.
        kafka: librdkafka properties; `bootstrap.servers` is needed. Never shown in logs, errors or `repr`.
        channel: The channel that the relay serves.
        tables: Where the callback tables are.
        publish_timeout: Seconds that sending the halves may take before the local transaction is rolled back.
        close_timeout: Seconds that `close()` waits for op markers.

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    group: str
    kafka: Mapping[str, str] = field(repr=False)
    channel: Channel = field(default_factory=Channel)
    tables: TableNames = field(default_factory=TableNames)
    publish_timeout: float = 5.0
    close_timeout: float = 5.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        try:
            check_group(self.group)
        except ProtocolError as error:
            raise ConfigurationError(str(error)) from None
        if not self.kafka.get("bootstrap.servers"):
            raise ConfigurationError(
                "bootstrap.servers is not set: give kafka={'bootstrap.servers': 'host:9092'}, "
                "or OUTBOX_BOOTSTRAP_SERVERS in the environment"
            )
        refuse_properties(self.kafka, _OURS)
        if self.publish_timeout <= 0 or self.close_timeout < 0:
            raise ConfigurationError("publish_timeout must be above 0 and close_timeout not below 0 seconds")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read `OUTBOX_GROUP`, `OUTBOX_BOOTSTRAP_SERVERS`, … over the TOML file that `OUTBOX_CONFIG` names.

        The TOML file has the same names in lower case: `group`, `bootstrap_servers`, `kafka` (a table of librdkafka
        properties; a JSON object in the environment), `channel`, `schema`, `table_prefix`, `publish_timeout`.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        environ = os.environ if environ is None else environ
        file = environ.get("OUTBOX_CONFIG")
        values = read_toml(Path(file)) if file else {}
        prefix = "OUTBOX_"
        values |= {name[len(prefix) :].lower(): text for name, text in environ.items() if name.startswith(prefix)}
        return cls._from_values(values)

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> Settings:
        if "group" not in values:
            raise ConfigurationError("the producer group is not set: give OUTBOX_GROUP, or group in the TOML file")
        kafka = kafka_properties(values.get("kafka", {}))
        if "bootstrap_servers" in values:
            kafka["bootstrap.servers"] = str(values["bootstrap_servers"])
        return cls(
            str(values["group"]),
            kafka,
            channel_names(str(values.get("channel", DEFAULT_CHANNEL))),
            TableNames(str(values.get("schema", "public")), str(values.get("table_prefix", "outbox"))),
            _seconds(values, "publish_timeout"),
            _seconds(values, "close_timeout"),
        )


def channel_names(name: str) -> Channel:
    """The names of a channel.

    Raises:
        ConfigurationError: Its own name is not allowed.
    """
    try:
        return Channel(name)
    except ProtocolError as error:
        raise ConfigurationError(str(error)) from None


def refuse_properties(kafka: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Refuse librdkafka properties that would break the guarantee.

    Args:
        kafka: What the user gives.
        ours: Properties that are not the user's to set, each with the reason.

    Raises:
        ConfigurationError: One of them is given.
    """
    for name, reason in ours.items():
        if name in kafka:
            raise ConfigurationError(f"property {name!r} cannot be set: {reason}")


def read_toml(path: Path) -> dict[str, Any]:
    """Read the TOML file of `OUTBOX_CONFIG`.

    Raises:
        ConfigurationError: It is missing or malformed.
    """
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"OUTBOX_CONFIG names {path}, which cannot be read: {error}") from error


def kafka_properties(value: Any) -> dict[str, str]:
    """Librdkafka properties from a table, or from a JSON object as text; every value becomes text.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigurationError(f"OUTBOX_KAFKA is not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError("kafka is not a table of librdkafka properties")
    return {str(name): str(one).lower() if isinstance(one, bool) else str(one) for name, one in value.items()}


def _seconds(values: Mapping[str, Any], name: str) -> float:
    try:
        return float(values.get(name, 5.0))
    except ValueError:
        raise ConfigurationError(f"{name} is not a number of seconds: {values[name]!r}") from None
