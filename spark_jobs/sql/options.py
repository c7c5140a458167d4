"""The options of `format("outbox")`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import DEFAULT_CHANNEL, Channel
from spark_jobs.runtime.spans import BROKER_SKEW_MS
from spark_jobs.sql.schema import OutboxTable

_KAFKA = "kafka."
_SERVERS = "kafka.bootstrap.servers"
_KNOWN = {"what", "path", "channel", "startingoffsets", "maxoffsetspertrigger", "clockskewms"}


@dataclass(frozen=True, slots=True)
class Options:
    """What is read, and how.

    Args:
        what: What is read.
        channel: Of which channel.
        kafka: librdkafka properties for the connection.
        latest: Whether a new stream begins at the end.
        most: Most offsets in a batch of a stream; None: all there are.
        clock_skew: How far the clocks of two brokers may differ, ms: what is read for a time ends later by it.
    """

    what: OutboxTable
    channel: Channel
    kafka: Mapping[str, str]
    latest: bool = False
    most: int | None = None
    clock_skew: int = BROKER_SKEW_MS

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read the options as Spark hands them over, their names in lower case.

        Raises:
            ConfigurationError: One is missing, unknown or wrong.
        """
        if unknown := sorted(name for name in given if name not in _KNOWN and not name.startswith(_KAFKA)):
            raise ConfigurationError(
                f"Format outbox has no option {unknown[0]}. Use what, channel, kafka.…, startingOffsets, "
                "maxOffsetsPerTrigger or clockSkewMs."
            )
        if not given.get(_SERVERS):
            raise ConfigurationError(f"Format outbox lacks the option {_SERVERS}. Set it to the addresses of Kafka.")
        kafka = {name.removeprefix(_KAFKA): value for name, value in given.items() if name.startswith(_KAFKA)}
        starting = given.get("startingoffsets", "earliest")
        if starting not in {"earliest", "latest"}:
            raise ConfigurationError(f"Option startingOffsets is {starting!r}. Use earliest or latest.")
        most = given.get("maxoffsetspertrigger")
        return cls(
            _what(given.get("what") or given.get("path", "")),
            _channel(given.get("channel", DEFAULT_CHANNEL)),
            {"log_level": "0", **kafka},
            starting == "latest",
            None if most is None else _number("maxOffsetsPerTrigger", most, 1),
            _number("clockSkewMs", given.get("clockskewms", str(BROKER_SKEW_MS)), 0),
        )

    @property
    def topic(self) -> str:
        """The topic that is read."""
        return self.what.topic(self.channel)


def _what(text: str) -> OutboxTable:
    try:
        return OutboxTable(text)
    except ValueError:
        raise ConfigurationError(f"Option what is {text!r}. Use one of {', '.join(OutboxTable)}.") from None


def _channel(text: str) -> Channel:
    try:
        return Channel(text)
    except ProtocolError as error:
        raise ConfigurationError(str(error)) from error


def _number(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigurationError(f"Option {name} is {text!r}. Give a number that is at least {least}.")
    return int(text)
