"""`Message`: what applications publish."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from numbers import Integral

from outbox.errors import MessageRefused
from outbox.protocol import names
from outbox.protocol.half import ANY_PARTITION, MAX_MILLISECONDS, Header, reserved_header

HeadersInput = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]

_PAIR = 2

MAX_IMMUNITY_SECONDS = 3_600
"""The limit of RocketMQ's proxy (`maxTransactionRecoverySecond`)."""

MAX_PARTITION = (1 << 31) - 1
"""Kafka numbers partitions with 32 bits."""


def _stored(what: str, value: object) -> bytes | None:
    """Return a key or value as Kafka stores it.

    Raises:
        MessageRefused: It is neither bytes nor text. The error shows its type only, never its content.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _stored_text(what, value)
    raise MessageRefused(
        f"The {what} is of type {type(value).__name__}. Give bytes or text, or use outbox.serialization for objects."
    )


def _stored_name(name: object) -> bytes:
    """Return a header's name as UTF-8; refuse names that Kafka's client would cut (at a NUL) or that crash it."""
    return _checked_name(_text("name of a header", name))


def _text(what: str, given: object) -> str:
    if not isinstance(given, str):
        raise MessageRefused(f"The {what} is of type {type(given).__name__}. It must be text.")
    return given


def _pairs(headers: HeadersInput) -> Iterable[tuple[str, bytes | str | None]]:
    """Return names and values of headers."""
    if isinstance(headers, dict) or isinstance(headers, Mapping):  # noqa: SIM101 - the first is faster
        return headers.items()
    pairs = list(headers) if isinstance(headers, Iterable) else None
    if pairs is None or not all(isinstance(pair, list | tuple) and len(pair) == _PAIR for pair in pairs):
        raise MessageRefused(
            f"The headers are of type {type(headers).__name__}. Give a mapping, or a list of pairs of name and value."
        )
    return pairs


def _require_whole(what: str, number: object) -> None:
    """Refuse anything but an integer: a relay could not parse `1.5` or `True` and would discard the message."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise MessageRefused(f"The {what} is of type {type(number).__name__}. Give an integer.")


@lru_cache(maxsize=1024)
def _checked_name(name: str) -> bytes:
    if "\0" in name:
        raise MessageRefused("The name of a header contains a NUL, where Kafka's client would cut it. Remove the NUL.")
    if reserved_header([name]) is not None:
        raise MessageRefused(f"Header {name!r} is reserved. Choose a name without the prefix 'outbox-'.")
    return _stored_text("name of a header", name)


@lru_cache(maxsize=1024)
def _check_topic(topic: str) -> None:
    if not names.is_topic_name(topic):
        raise MessageRefused(
            f"Topic name {topic!r} is not valid. Use 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'."
        )
    if names.is_kafka_topic(topic):
        raise MessageRefused(
            f"Topic {topic!r} is an internal topic of Kafka. Choose a name that does not begin with '__'."
        )


def _stored_text(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MessageRefused(
            f"The {what} is not valid UTF-8 (lone surrogate). Give bytes, or correct the text."
        ) from None


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """A message for a real topic.

    Args:
        topic: Real topic; it must exist.
        value: Body, bytes or text (UTF-8); None is a tombstone.
        key: Key, bytes or text; the key of a transaction's first message is its ordering key.
        headers: A mapping, or pairs where names repeat or order matters. Names beginning with `outbox-` are refused.
        partition: Partition of the real topic; -1: chosen by key, as the Java producer does.
        timestamp: Timestamp of the record, ms since 1970; None: the time at which the broker stored the half.
        not_before: Table mode: the time from which the message is delivered, with a time zone. Until then it waits, and
            `cancel()` takes it back; what is published later passes it. None: now.
        check_immunity: Seconds after the half was stored before the transaction is checked (RocketMQ:
            CHECK_IMMUNITY_TIME_IN_SECONDS), at most 3,600; None: the relay's `transaction_timeout_ms`. Set it for a
            local transaction that is known to take long.

    Raises:
        MessageRefused: The topic's name, a header or a number is not allowed.

    Example:
        >>> Message("orders", value=b"{}", key="42", headers={"type": "created"})
        Message(topic='orders', 15 bytes)
    """

    topic: str
    value: bytes | str | None = None
    key: bytes | str | None = None
    headers: HeadersInput = field(default=())
    partition: int = ANY_PARTITION
    timestamp: int | None = None
    check_immunity: float | None = None
    not_before: datetime | None = None
    _key: bytes | None = field(init=False, compare=False)  # encoded once, not at each use
    _value: bytes | None = field(init=False, compare=False)
    _headers: tuple[Header, ...] = field(init=False, compare=False)
    _size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Check what can be checked without the cluster."""
        _check_topic(_text("topic", self.topic))
        if self._has_numbers():
            self._check_numbers()
        self._keep(_stored("key", self.key), _stored("value", self.value))

    def _keep(self, key: bytes | None, value: bytes | None) -> None:
        """Store the encoded key, value and headers, and their size in bytes."""
        headers: list[Header] = []
        size = len(key or b"") + len(value or b"")
        if self.headers:
            for name, given in _pairs(self.headers):
                header = given if isinstance(given, bytes) else _stored(f"header {name!r}", given)
                size += len(_stored_name(name)) + len(header or b"")
                headers.append((name, header))
        keep = object.__setattr__
        keep(self, "_key", key)
        keep(self, "_value", value)
        keep(self, "_headers", tuple(headers))
        keep(self, "_size", size)

    def _has_numbers(self) -> bool:
        """Return whether any number is given; most messages have none."""
        return (
            self.timestamp is not None
            or self.check_immunity is not None
            or self.not_before is not None
            or type(self.partition) is not int
            or self.partition != ANY_PARTITION
        )

    def _check_numbers(self) -> None:
        _require_whole("partition", self.partition)
        if self.timestamp is not None:
            _require_whole("timestamp", self.timestamp)
        if self.partition < ANY_PARTITION:
            raise MessageRefused(f"Partition {self.partition} is not valid. Use 0 or more, or -1 for 'by key'.")
        if self.partition > MAX_PARTITION:
            raise MessageRefused(f"Partition {self.partition} is too large. Use a number of a partition of the topic.")
        if self.timestamp is not None and self.timestamp < 1:
            raise MessageRefused(
                f"Timestamp {self.timestamp} is not after 1970. Give ms since 1970, or omit it for the current time."
            )
        if self.timestamp is not None and self.timestamp > MAX_MILLISECONDS:
            raise MessageRefused(f"Timestamp {self.timestamp} is too large. Give ms since 1970.")
        if self.check_immunity is not None and not 0 <= self.check_immunity <= MAX_IMMUNITY_SECONDS:
            raise MessageRefused(f"check_immunity is {self.check_immunity} s. Use 0 to {MAX_IMMUNITY_SECONDS} seconds.")

        if self.not_before is not None and (not isinstance(self.not_before, datetime) or not self.not_before.tzinfo):
            raise MessageRefused("not_before is no time with a time zone. Give a datetime such as datetime.now(UTC).")

    def __repr__(self) -> str:
        """Return topic and size only, so that no payload, key or header value reaches a log."""
        return f"Message(topic={self.topic!r}, {self.size()} bytes)"

    def key_bytes(self) -> bytes | None:
        """Return the key as Kafka stores it."""
        return self._key

    def value_bytes(self) -> bytes | None:
        """Return the value as Kafka stores it."""
        return self._value

    def header_list(self) -> list[Header]:
        """Return the headers as Kafka stores them, in order and with repeated names."""
        return list(self._headers)

    def immunity_ms(self) -> int | None:
        """Return `check_immunity` in ms."""
        return None if self.check_immunity is None else round(self.check_immunity * 1000)

    def size(self) -> int:
        """Return the size of key, value and headers, bytes."""
        return self._size
