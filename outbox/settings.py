"""Settings of the library: from arguments, from the environment (`OUTBOX_…`), from a TOML file."""

from __future__ import annotations

import difflib
import ipaddress
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
from typing import Any

from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import DEFAULT_CHANNEL, Channel, check_group

log = logging.getLogger("outbox")

_SCHEMA = re.compile(r"[a-z0-9_][a-z0-9_-]{0,62}")
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,49}")

_ALL_REPLICAS = "a half must be stored by all in-sync replicas before the local transaction commits"
_BOUNDED = "publish_timeout bounds it"
_CALLBACKS = "acknowledgements of halves arrive there; a recorder tells what the library does"
_HEADERS = "the control headers of a half need the broker's own protocol version"
_POSITIONS = "the library keeps the positions of what it reads itself"

_OURS = {
    "acks": _ALL_REPLICAS,
    "api.version.request": _HEADERS,
    "auto.commit.enable": _POSITIONS,
    "auto.offset.reset": _POSITIONS,
    "broker.version.fallback": _HEADERS,
    "delivery.report.only.error": "a half counts only when its acknowledgement was seen, with its offset",
    "delivery.timeout.ms": _BOUNDED,
    "dr_cb": _CALLBACKS,
    "dr_msg_cb": _CALLBACKS,
    "enable.auto.commit": _POSITIONS,
    "enable.auto.offset.store": _POSITIONS,
    "enable.gapless.guarantee": "one half that fails would end the producer that all threads share",
    "enable.idempotence": "a retried half must not appear twice",
    "group.id": "what the library reads, it reads in a group that derives from the producer group",
    "group.instance.id": "any living instance of the producer group may answer a check request",
    "isolation.level": "the library looks at what read_committed readers see",
    "message.timeout.ms": _BOUNDED,
    "metadata.broker.list": "it is an older name of bootstrap.servers and would replace it: use that",
    "on_delivery": _CALLBACKS,
    "partitioner": "the library chooses the half partition by ordering key",
    "partitioner_cb": "the library chooses the half partition by ordering key",
    "request.required.acks": _ALL_REPLICAS,
    "transactional.id": "halves are not sent in Kafka transactions",
}
"""librdkafka properties that would break the guarantee; what idempotence forbids beyond these, librdkafka refuses."""

_AGREED = {
    "acks": {"all", "-1"},
    "api.version.request": {"true"},
    "enable.gapless.guarantee": {"false"},
    "enable.idempotence": {"true"},
    "isolation.level": {"read_committed"},
    "request.required.acks": {"all", "-1"},
}
"""Values that say what the library does anyway: they may stand in properties that several programs share."""

_TOPIC_PREFIX = "topic."
"""librdkafka takes every property of topics with this prefix too, and then lets it win over the bare name."""

_FILES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
)

_TRUE, _FALSE = {"true", "1", "yes"}, {"false", "0", "no"}

_LONGEST = 2_147_483.0
"""Seconds: the largest timeout that librdkafka and Postgres take, 32 bits of ms."""

_NAMES = (
    "bootstrap_servers",
    "channel",
    "close_timeout",
    "eager",
    "eager_idle_timeout",
    "group",
    "kafka",
    "publish_timeout",
    "reject_transactions",
    "schema",
    "table_prefix",
)
"""What `Settings.from_env()` reads; the services read more from the same file."""


@dataclass(frozen=True, slots=True)
class TableNames:
    """Where the callback tables are.

    Args:
        schema: Their schema: lower-case letters, digits, `_` and `-`, at most 63 characters. All SQL quotes it.
        prefix: Beginning of their names: lower-case letters, digits and `_`, at most 50 characters.

    Raises:
        ConfigurationError: A name is not allowed.
    """

    schema: str = "public"
    prefix: str = "outbox"

    def __post_init__(self) -> None:
        """Check the names."""
        if not _SCHEMA.fullmatch(self.schema):
            raise ConfigurationError(
                f"schema name {self.schema!r} is not allowed: use lower-case letters, digits, '_' and '-', at most 63"
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigurationError(
                f"table prefix {self.prefix!r} is not allowed: use lower-case letters, digits and '_', at most 50"
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
        kafka: librdkafka properties, passed on as given: text, numbers, booleans, callables such as `oauth_cb`, a
            `logger`; `bootstrap.servers` is needed. Never shown in logs, errors or `repr`.
        channel: The channel that the relay serves.
        tables: Where the callback tables are.
        publish_timeout: Seconds that sending the halves may take before the local transaction is rolled back; at
            least 0.01.
        close_timeout: Seconds that `close()` waits for op markers.
        eager: Whether a half is sent at `publish()`, not at COMMIT.
        reject_transactions: Whether `publish()` is refused (RocketMQ's `rejectTransactionMessage`).
        eager_idle_timeout: Seconds that a transaction with eager halves may stay idle before Postgres ends it (R7).

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    group: str
    kafka: Mapping[str, Any] = field(repr=False)
    channel: Channel = field(default_factory=Channel)
    tables: TableNames = field(default_factory=TableNames)
    publish_timeout: float = 5.0
    close_timeout: float = 5.0
    eager: bool = False
    reject_transactions: bool = False
    eager_idle_timeout: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        object.__setattr__(self, "kafka", dict(self.kafka))  # what was checked is what is used
        try:
            check_group(self.group)
        except ProtocolError as error:
            raise ConfigurationError(str(error)) from None
        if not self.kafka.get("bootstrap.servers"):
            raise ConfigurationError(
                "bootstrap.servers is not set: give kafka={'bootstrap.servers': 'host:9092'}, "
                "or OUTBOX_BOOTSTRAP_SERVERS in the environment"
            )
        refuse_properties(self.kafka, _OURS, _AGREED)
        _check_callables(self.kafka)
        _check_files(self.kafka)
        # librdkafka takes a message timeout of 0 ms for "none", Postgres an idle timeout of 0 likewise.
        _check_seconds("publish_timeout", self.publish_timeout, 0.01)
        _check_seconds("close_timeout", self.close_timeout, 0.0)
        _check_seconds("eager_idle_timeout", self.eager_idle_timeout, 0.01)
        _plaintext.look(self.kafka)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read `OUTBOX_GROUP`, `OUTBOX_BOOTSTRAP_SERVERS`, … over the TOML file that `OUTBOX_CONFIG` names.

        The TOML file has the same names in lower case: `group`, `bootstrap_servers`, `kafka` (a table of librdkafka
        properties; a JSON object in the environment), `channel`, `schema`, `table_prefix`, `publish_timeout`,
        `close_timeout`, `eager`, `reject_transactions`, `eager_idle_timeout`. Other names are ignored, because the
        services read the same file and environment; one in the file that looks like a slip is logged.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        environ = os.environ if environ is None else environ
        file = environ.get("OUTBOX_CONFIG")
        values = read_toml(Path(file)) if file else {}
        _warn_of_slips(values)
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
            _seconds(values, "publish_timeout", 5.0),
            _seconds(values, "close_timeout", 5.0),
            _truth(values, "eager"),
            _truth(values, "reject_transactions"),
            _seconds(values, "eager_idle_timeout", 300.0),
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


def refuse_properties(
    kafka: Mapping[str, Any], ours: Mapping[str, str], agreed: Mapping[str, Collection[str]] = MappingProxyType({})
) -> None:
    """Refuse librdkafka properties that would break the guarantee, under any of their names.

    Args:
        kafka: What the user gives.
        ours: Properties that are not the user's to set, each with the reason.
        agreed: Values of such properties that may be given all the same.

    Raises:
        ConfigurationError: One of them is given.
    """
    for given, value in kafka.items():
        if not isinstance(given, str):
            raise ConfigurationError("kafka has a property whose name is no text: use the names of librdkafka")
        name = given.removeprefix(_TOPIC_PREFIX)
        reason = _nobodys(given) or ours.get(name)
        if reason is not None and str(value).lower() not in agreed.get(name, ()):
            raise ConfigurationError(f"property {given!r} cannot be set: {reason}")


def _nobodys(name: str) -> str | None:
    """Why a property is refused in every room, if it is."""
    if name == "default.topic.config":
        return "it wins over what is set beside it; put its properties beside the others"
    if name.startswith("test."):
        return "it puts a broker in memory in the place of the cluster"
    return None


def _check_callables(kafka: Mapping[str, Any]) -> None:
    for name, value in kafka.items():
        if name.endswith("_cb") and not callable(value):
            raise ConfigurationError(f"property {name!r} must be a function; only Python can give one, not a file")


def _security_protocol(kafka: Mapping[str, Any]) -> str:
    return str(kafka.get("security.protocol") or "plaintext").lower()


def _check_files(kafka: Mapping[str, Any]) -> None:
    """Say it clearly: librdkafka says "BIO lib". The path is not shown: somebody may have put the key there."""
    if not _security_protocol(kafka).endswith("ssl"):
        return
    for name in _FILES:
        path = kafka.get(name)
        if path and path != "probe" and not os.access(path, os.R_OK):
            raise ConfigurationError(
                f"property {name!r} names a file that is missing or not readable: correct the path or its rights"
            )


def _check_seconds(name: str, seconds: float, least: float) -> None:
    if not least <= seconds <= _LONGEST:  # NaN is neither
        raise ConfigurationError(f"{name} must be from {least:g} to {_LONGEST:.0f} seconds")


class _Plaintext:
    """Warns once per process that messages cross the network unencrypted."""

    def __init__(self) -> None:
        self._warned = False

    def look(self, kafka: Mapping[str, Any]) -> None:
        """Warn if a broker that is not on this machine is reached without TLS, and nobody was warned yet."""
        if self._warned or _security_protocol(kafka).endswith("ssl"):
            return
        if not all(_is_loopback(host) for host in _hosts(str(kafka["bootstrap.servers"]))):
            self._warned = True
            log.warning(
                "messages and credentials go to Kafka unencrypted: "
                "set security.protocol to ssl or sasl_ssl if the network is not yours alone"
            )


_plaintext = _Plaintext()


def _hosts(bootstrap_servers: str) -> Iterator[str]:
    for entry in bootstrap_servers.split(","):
        address = entry.strip().rpartition("://")[2]
        if address.startswith("["):
            yield address[1:].partition("]")[0]
        elif address:
            yield address.partition(":")[0] if address.count(":") == 1 else address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


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

    In TOML `ssl.ca.location = "…"` is a table in a table: it means the property of that name.

    Raises:
        ConfigurationError: It is neither.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigurationError(f"OUTBOX_KAFKA is not a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(
            "kafka is not a table of librdkafka properties: write [kafka] with one property a line"
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
        raise ConfigurationError(f"property {name!r} is a {type(value).__name__}: write text, a number, true or false")


def _warn_of_slips(values: Mapping[str, Any]) -> None:
    for name in values.keys() - set(_NAMES):
        for meant in difflib.get_close_matches(name, _NAMES, 1, 0.85):
            log.warning("the TOML file of OUTBOX_CONFIG says %r, which the library ignores: is %r meant?", name, meant)


def _seconds(values: Mapping[str, Any], name: str, default: float) -> float:
    try:
        return float(values.get(name, default))
    except (TypeError, ValueError):
        raise ConfigurationError(f"{name} is not a number of seconds: write it like 5 or 0.5") from None


def _truth(values: Mapping[str, Any], name: str) -> bool:
    text = str(values.get(name, False)).strip().lower()
    if text not in _TRUE | _FALSE:
        raise ConfigurationError(f"{name} is neither true nor false: write true, false, yes, no, 1 or 0")
    return text in _TRUE
