"""Settings of the library: from arguments, from the environment (`OUTBOX_…`), from a TOML file."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from outbox._security.encryption import is_encrypted, remote_brokers
from outbox._security.secret_files import with_secrets
from outbox._security.token_provider import with_provider
from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import DEFAULT_CHANNEL, Channel, check_group

log = logging.getLogger("outbox")

Mode = Literal["half", "table"]
"""How messages are stored until the local transaction commits: as half messages in Kafka, or as rows of the table."""

_SCHEMA = re.compile(r"[a-z0-9_][a-z0-9_-]{0,62}")
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,49}")

_ALL_REPLICAS = "all in-sync replicas must store a half before the local transaction commits"
_BOUNDED = "publish_timeout_seconds sets it"
_CALLBACKS = "the library needs it for the acknowledgements of halves; use a recorder for metrics"
_HEADERS = "the control headers of a half need the broker's own protocol version"
_POSITIONS = "the library manages the offsets of its consumers"

_OURS = {
    "acks": _ALL_REPLICAS,
    "api.version.request": _HEADERS,
    "auto.commit.enable": _POSITIONS,
    "auto.offset.reset": _POSITIONS,
    "broker.version.fallback": _HEADERS,
    "delivery.report.only.error": "the library needs the offset of each acknowledged half",
    "delivery.timeout.ms": _BOUNDED,
    "dr_cb": _CALLBACKS,
    "dr_msg_cb": _CALLBACKS,
    "enable.auto.commit": _POSITIONS,
    "enable.auto.offset.store": _POSITIONS,
    "enable.gapless.guarantee": "one failed half would stop the producer that all threads share",
    "enable.idempotence": "a retried half must not appear twice",
    "group.id": "the library derives the consumer group from the producer group",
    "group.instance.id": "any live instance of the producer group may answer a check request",
    "isolation.level": "the library reads with read_committed",
    "message.timeout.ms": _BOUNDED,
    "metadata.broker.list": "it is an alias of bootstrap.servers and would replace it; use bootstrap.servers",
    "on_delivery": _CALLBACKS,
    "partitioner": "the library chooses the half partition by ordering key",
    "partitioner_cb": "the library chooses the half partition by ordering key",
    "request.required.acks": _ALL_REPLICAS,
    "transactional.id": "halves are not sent in Kafka transactions",
}
"""librdkafka properties that would break the guarantee; librdkafka itself refuses others with idempotence."""

_AGREED = {
    "acks": {"all", "-1"},
    "api.version.request": {"true"},
    "enable.gapless.guarantee": {"false"},
    "enable.idempotence": {"true"},
    "isolation.level": {"read_committed"},
    "request.required.acks": {"all", "-1"},
}
"""Values of these properties that the library sets itself: properties shared by several programs may have them."""

_TOPIC_PREFIX = "topic."
"""librdkafka also accepts each topic property with this prefix, and prefers it to the bare name."""

_FILES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
)

_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no"}

_LONGEST = 2_147_483.0
"""Seconds: the largest timeout that librdkafka and Postgres accept (32-bit ms)."""

_NAMES = (
    "bootstrap_servers",
    "channel",
    "close_timeout_seconds",
    "eager",
    "eager_idle_timeout_seconds",
    "group",
    "kafka",
    "mode",
    "publish_timeout_seconds",
    "reject_transactions",
    "schema",
    "table_prefix",
)
"""Names that `Settings.from_env()` reads; the services read more from the same file."""


@dataclass(frozen=True, slots=True)
class TableNames:
    """Schema and name prefix of the callback tables.

    Args:
        schema: Schema: lower-case letters, digits, `_` and `-`, at most 63 characters. It is quoted in all SQL.
        prefix: Prefix of the table names: lower-case letters, digits and `_`, at most 50 characters.

    Raises:
        ConfigurationError: A name is not allowed.
    """

    schema: str = "public"
    prefix: str = "outbox"

    def __post_init__(self) -> None:
        """Check the names."""
        if not _SCHEMA.fullmatch(self.schema):
            raise ConfigurationError(
                f"Schema name {self.schema!r} is not valid. Use at most 63 lower-case letters, digits, '_' and '-'."
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"Table prefix {self.prefix!r} is not valid. Use at most 50 lower-case letters, digits and '_'."
            )

    @property
    def transaction(self) -> str:
        """Name of the callback table."""
        return f"{self.prefix}_transaction"

    @property
    def meta(self) -> str:
        """Name of the table with incarnation, schema version and purge watermarks."""
        return f"{self.prefix}_meta"

    @property
    def fence(self) -> str:
        """Name of the table for the durability write (R9)."""
        return f"{self.prefix}_fence"

    @property
    def message(self) -> str:
        """Name of the message table of table mode."""
        return f"{self.prefix}_message"

    @property
    def message_sequence(self) -> str:
        """Name that Postgres gives the sequence of the message table's ids."""
        return f"{self.message[:56]}_id_seq"

    @property
    def discarded(self) -> str:
        """Name of the table of messages that the relay could not deliver, in table mode."""
        return f"{self.prefix}_discarded"

    @property
    def delivered(self) -> str:
        """Name of the table with the evidence of what the relay delivered, in table mode."""
        return f"{self.prefix}_delivered"

    @property
    def source(self) -> str:
        """Name of the table with the relay's progress, in table mode."""
        return f"{self.prefix}_source"

    @property
    def inbox(self) -> str:
        """Name of the inbox table."""
        return f"{self.prefix}_inbox"

    @property
    def publish_function(self) -> str:
        """Name of the SQL function that publishes a message in table mode."""
        return f"{self.prefix}_publish"

    @property
    def notify_function(self) -> str:
        """Name of the function of the trigger that notifies the relay of commits."""
        return f"{self.prefix}_notify"

    def owns(self, schema: str, table: str) -> bool:
        """Return whether a table with these names is the outbox's own."""
        callback = (self.transaction, self.meta, self.fence)
        messages = (self.message, self.discarded, self.delivered, self.source)
        return schema == self.schema and table in {*callback, *messages, self.inbox}

    def check_foreign(self, schema: str, table: str) -> None:
        """Refuse a foreign table that has a name of the outbox's own tables."""
        if self.owns(schema, table):
            raise ConfigurationError(
                f"{schema}.{table} is a name of the outbox's own tables with prefix {self.prefix}. Name the table that "
                "the application made, or set another table_prefix."
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an `Outbox`.

    Args:
        group: Producer group; unique to a service.
        kafka: librdkafka properties, passed on as given: text, numbers, booleans, callables such as `oauth_cb`, a
            `logger`; `bootstrap.servers` is required. Never shown in logs, errors or `repr`. Table mode has none.
            A secret may be in a file (`sasl.password_file`), and `oauth_cb` may be `package.module:function`.
        channel: The channel that the relay serves.
        tables: Schema and name prefix of the callback tables.
        publish_timeout_seconds: Maximum seconds to send the halves; after it the local transaction is rolled back. At
            least 0.01.
        close_timeout_seconds: Maximum seconds that `close()` waits for op markers.
        eager: Send each half at `publish()`, not at COMMIT.
        reject_transactions: Refuse every publication (RocketMQ: `rejectTransactionMessage`). `from_env()` reads it.
        eager_idle_timeout_seconds: Seconds that a transaction with eager halves may be idle before Postgres ends it
            (R7).
        mode: `table`: messages are rows of the message table, and nothing connects to Kafka. `half`: they go to Kafka
            as half messages before COMMIT.

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    group: str
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    channel: Channel = field(default_factory=Channel)
    tables: TableNames = field(default_factory=TableNames)
    publish_timeout_seconds: float = 5.0
    close_timeout_seconds: float = 5.0
    eager: bool = False
    reject_transactions: bool = False
    eager_idle_timeout_seconds: float = 300.0
    mode: Mode = "table"

    def __post_init__(self) -> None:
        """Check the settings."""
        # A copy, so that it cannot change after the check.
        object.__setattr__(self, "kafka", usable_properties(self.kafka))
        try:
            check_group(self.group)
        except ProtocolError as error:
            raise ConfigurationError(str(error)) from None
        _check_mode(self.mode, eager=self.eager)
        if self.mode != "table":
            self._check_kafka()
        elif self.kafka:
            raise ConfigurationError(
                f"Kafka settings are given ({', '.join(sorted(map(str, self.kafka)))}), and table mode does not use "
                "them. Remove them, or set mode to 'half'."
            )
        # For librdkafka a message timeout of 0 ms means "none", and so does an idle timeout of 0 for Postgres.
        _check_seconds("publish_timeout_seconds", self.publish_timeout_seconds, 0.01)
        _check_seconds("close_timeout_seconds", self.close_timeout_seconds, 0.0)
        _check_seconds("eager_idle_timeout_seconds", self.eager_idle_timeout_seconds, 0.01)

    def _check_kafka(self) -> None:
        if not self.kafka.get("bootstrap.servers"):
            raise ConfigurationError(
                "bootstrap.servers is not set. Give kafka={'bootstrap.servers': 'host:9092'}, "
                "or set OUTBOX_BOOTSTRAP_SERVERS."
            )
        refuse_properties(self.kafka, _OURS, _AGREED)
        _check_callables(self.kafka)
        _check_files(self.kafka)
        _plaintext.check(self.kafka)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read `OUTBOX_GROUP`, `OUTBOX_BOOTSTRAP_SERVERS`, … over the TOML file that `OUTBOX_CONFIG` names.

        The TOML file has the same names in lower case: `group`, `bootstrap_servers`, `kafka` (a table of librdkafka
        properties; a JSON object in the environment), `channel`, `schema`, `table_prefix`, `publish_timeout_seconds`,
        `close_timeout_seconds`, `eager`, `reject_transactions`, `eager_idle_timeout_seconds`, `mode`. Other names are
        ignored, because the services read the same file and environment. A name in the file that looks like a typing
        error is logged. If `mode` is given as `table`, Kafka's settings are such names too.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        environ = os.environ if environ is None else environ
        file = environ.get("OUTBOX_CONFIG")
        values = read_toml(Path(file)) if file else {}
        _warn_of_misspellings(values)
        prefix = "OUTBOX_"
        given = {name[len(prefix) :].lower(): text for name, text in environ.items() if name.startswith(prefix)}
        return cls._from_values(values | given)

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> Settings:
        if "group" not in values:
            raise ConfigurationError("The producer group is not set. Set OUTBOX_GROUP, or `group` in the TOML file.")
        kafka = kafka_properties(values.get("kafka", {}))
        if "bootstrap_servers" in values:
            kafka["bootstrap.servers"] = str(values["bootstrap_servers"])
        if kafka and "mode" not in values:
            raise ConfigurationError(
                f"Kafka settings are given ({', '.join(sorted(kafka))}), and no mode. Set OUTBOX_MODE, or mode in the "
                "TOML file, to 'half', or to 'table', which does not use them."
            )
        is_table_mode = _mode(values) == "table"
        return cls(
            str(values["group"]),
            {} if is_table_mode else kafka,
            channel_names(str(values.get("channel", DEFAULT_CHANNEL))),
            TableNames(str(values.get("schema", "public")), str(values.get("table_prefix", "outbox"))),
            _seconds(values, "publish_timeout_seconds", 5.0),
            _seconds(values, "close_timeout_seconds", 5.0),
            _truth(values, "eager"),
            _truth(values, "reject_transactions"),
            _seconds(values, "eager_idle_timeout_seconds", 300.0),
            _mode(values),
        )


def channel_names(name: str) -> Channel:
    """Return the channel of a name, with the names of its topics."""
    try:
        return Channel(name)
    except ProtocolError as error:
        raise ConfigurationError(str(error)) from None


def usable_properties(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties as a client takes them: with the secrets of files, and the token provider that is named."""
    return with_provider(with_secrets(kafka))


def refuse_properties(
    kafka: Mapping[str, Any], ours: Mapping[str, str], agreed: Mapping[str, Collection[str]] = MappingProxyType({})
) -> None:
    """Refuse librdkafka properties that would break the guarantee, under any of their names.

    Args:
        ours: Properties that the application must not set, each with the reason.
        agreed: Values of such properties that are accepted nevertheless.
    """
    for given, value in kafka.items():
        if not isinstance(given, str):
            raise ConfigurationError("A name in kafka is not a string. Use the names of librdkafka properties.")
        name = given.removeprefix(_TOPIC_PREFIX)
        reason = _always_refused(given) or ours.get(name)
        if reason is not None and str(value).lower() not in agreed.get(name, ()):
            raise ConfigurationError(f"Property {given!r} cannot be set: {reason}.")


def _always_refused(name: str) -> str | None:
    """Return why a property is refused by the library and by every service; None if it is not."""
    if name == "default.topic.config":
        return "it would override other properties; put its properties beside the others"
    if name.startswith("test."):
        return "it replaces the cluster with a mock broker in memory"
    return None


def _check_callables(kafka: Mapping[str, Any]) -> None:
    for name, value in kafka.items():
        if name.endswith("_cb") and not callable(value):
            raise ConfigurationError(f"Property {name!r} must be a function. Set it in Python, not in a file.")


def _check_files(kafka: Mapping[str, Any]) -> None:
    """Refuse unreadable files: librdkafka's own error is "BIO lib". The path may hold a key, so it is not shown."""
    if not is_encrypted(kafka):
        return
    for name in _FILES:
        path = kafka.get(name)
        if path and path != "probe" and not os.access(path, os.R_OK):
            raise ConfigurationError(
                f"The file of property {name!r} is missing or not readable. Correct the path or its permissions."
            )


def _check_mode(mode: str, *, eager: bool) -> None:
    if mode not in get_args(Mode):
        raise ConfigurationError(f"mode is {mode!r}. Use 'half' or 'table'.")
    if eager and mode != "half":
        raise ConfigurationError(
            "eager is on in table mode, which has no half messages. Turn eager off, or use mode 'half'."
        )


def _check_seconds(name: str, seconds: float, least: float) -> None:
    if not least <= seconds <= _LONGEST:  # NaN is neither
        raise ConfigurationError(f"{name} is {seconds:g} s. It must be from {least:g} to {_LONGEST:.0f} seconds.")


class _Plaintext:
    """Warns once per process that messages cross the network unencrypted."""

    def __init__(self) -> None:
        self._warned = False

    def check(self, kafka: Mapping[str, Any]) -> None:
        """Warn, once, if a broker on another machine is reached without TLS."""
        if not self._warned and not is_encrypted(kafka) and remote_brokers(kafka):
            self._warned = True
            log.warning(
                "Connection to Kafka is not encrypted. "
                "Set security.protocol to ssl or sasl_ssl, unless the network is private"
            )


_plaintext = _Plaintext()


def read_toml(path: Path) -> dict[str, Any]:
    """Read the TOML file of `OUTBOX_CONFIG`."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"The file of OUTBOX_CONFIG, {path}, cannot be read: {error}") from error


def kafka_properties(value: Any) -> dict[str, str]:
    """Return librdkafka properties from a table, or from a JSON object as text; values are converted to text.

    In TOML `ssl.ca.location = "…"` is a nested table. It is flattened to the property of that name.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigurationError(f"OUTBOX_KAFKA is not a JSON object: {error}.") from None
    if not isinstance(value, dict):
        raise ConfigurationError(
            "kafka is not a table of librdkafka properties. Write [kafka] with one property per line."
        )
    return dict(chain.from_iterable(_flat(str(name), one) for name, one in value.items()))


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _flat(f"{name}.{inner}", one)
    elif isinstance(value, bool):
        yield name, str(value).lower()
    elif isinstance(value, str | int | float):
        yield name, str(value)
    else:
        raise ConfigurationError(f"Property {name!r} is a {type(value).__name__}. Use text, a number, true or false.")


def _warn_of_misspellings(values: Mapping[str, Any]) -> None:
    for name in values.keys() - {*_NAMES, "channels"}:
        for close in difflib.get_close_matches(name, _NAMES, 1, 0.85):
            log.warning("Setting %r in the TOML file of OUTBOX_CONFIG ignored. Did you mean %r?", name, close)


def _seconds(values: Mapping[str, Any], name: str, default: float) -> float:
    try:
        return float(values.get(name, default))
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} is not a number. Write seconds, such as 5 or 0.5.") from None


def _mode(values: Mapping[str, Any]) -> Mode:
    mode: Any = str(values.get("mode", "table")).strip().lower()
    _check_mode(mode, eager=False)
    checked: Mode = mode
    return checked


def _truth(values: Mapping[str, Any], name: str) -> bool:
    text = str(values.get(name, False)).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ConfigurationError(f"{name} is neither true nor false. Use true, false, yes, no, 1 or 0.")
    return text in _TRUE
