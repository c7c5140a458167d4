"""Settings of the library: from arguments, from the environment (`OUTBOX_…`), from a TOML file."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from outbox._security.encryption import is_encrypted, remote_brokers
from outbox._settings.properties import refuse_properties, usable_properties
from outbox._settings.table_names import TableNames, channel_names
from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Channel, check_service

__all__ = ["HalfSettings", "Settings", "TableNames", "channel_names"]

log = logging.getLogger("outbox")

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
    "group.id": "the library derives the consumer group from the service",
    "group.instance.id": "any live instance of the service may answer a check request",
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

_FILES = tuple(f"ssl.{what}.location" for what in ("ca", "certificate", "crl", "key", "keystore"))

_LONGEST = 2_147_483.0
"""Seconds: the largest timeout that librdkafka and Postgres accept (32-bit ms)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of an `Outbox`.

    Args:
        service: Name of the service; all its processes have the same one.
        channel: The channel that the relay serves.
        tables: Schema and name prefix of the tables.
        reject_transactions: Refuse every publication (RocketMQ: `rejectTransactionMessage`). `from_env()` reads it.

    Raises:
        ConfigurationError: A setting is missing or malformed.
    """

    service: str
    channel: Channel = field(default_factory=Channel)
    tables: TableNames = field(default_factory=TableNames)
    reject_transactions: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        try:
            check_service(self.service)
        except ProtocolError as error:
            raise ConfigurationError(str(error)) from None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read `OUTBOX_SERVICE`, `OUTBOX_CHANNEL`, … over the TOML file that `OUTBOX_CONFIG` names.

        The TOML file has the same names in lower case: `service`, `channel`, `schema`, `table_prefix`,
        `reject_transactions`; for half mode also `bootstrap_servers`, `kafka` (a table of librdkafka properties; a JSON
        object in the environment), `publish_timeout_seconds`, `eager`,
        `eager_idle_timeout_seconds`. Other names are ignored, because the services read the same file and environment.
        A name in the file that looks like a typing error is logged.

        Raises:
            ConfigurationError: A setting is missing or malformed.
        """
        return cls(**cls._arguments(environ))

    @classmethod
    def _arguments(cls, environ: Mapping[str, str] | None) -> dict[str, Any]:
        from outbox._settings.declared import LibrarySettings  # noqa: PLC0415 - as long to import as half of the rest

        return _shared(LibrarySettings(environ))


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfSettings(Settings):
    """Settings of a `HalfOutbox`: those of an `Outbox`, and more.

    Args:
        kafka: librdkafka properties, passed on as given: text, numbers, booleans, callables such as `oauth_cb`, a
            `logger`; `bootstrap.servers` is required. Never shown in logs, errors or `repr`.
            A secret may be in a file (`sasl.password_file`), and `oauth_cb` may be `package.module:function`.
        publish_timeout_seconds: Maximum seconds to send the halves; after it the local transaction is rolled back. At
            least 0.01.
        eager: Send each half at `publish()`, not at COMMIT.
        eager_idle_timeout_seconds: Seconds that a transaction with eager halves may be idle before Postgres ends it
            (R7).

    Raises:
        ConfigurationError: A setting is missing, or would break the guarantee.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    publish_timeout_seconds: float = 5.0
    eager: bool = False
    eager_idle_timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Check the settings."""
        Settings.__post_init__(self)  # slots=True made another class than the one that super() would find
        # A copy, so that it cannot change after the check.
        object.__setattr__(self, "kafka", usable_properties(self.kafka))
        self._check_kafka()
        # For librdkafka a message timeout of 0 ms means "none", and so does an idle timeout of 0 for Postgres.
        _check_seconds("publish_timeout_seconds", self.publish_timeout_seconds, 0.01)
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
    def _arguments(cls, environ: Mapping[str, str] | None) -> dict[str, Any]:
        from outbox._settings.declared import HalfLibrarySettings  # noqa: PLC0415 - as above

        read = HalfLibrarySettings(environ)
        servers = {"bootstrap.servers": read.bootstrap_servers} if read.bootstrap_servers else {}
        return _shared(read) | {
            "kafka": {**read.kafka, **servers},
            "publish_timeout_seconds": read.publish_timeout_seconds,
            "eager": read.eager,
            "eager_idle_timeout_seconds": read.eager_idle_timeout_seconds,
        }


def _shared(read: Any) -> dict[str, Any]:
    """Return the arguments that both modes have."""
    return {
        "service": read.service,
        "channel": read.channel_names(),
        "tables": read.table_names(),
        "reject_transactions": read.reject_transactions,
    }


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
