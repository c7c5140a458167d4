"""Messages as applications write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral

from outbox.errors import MessageRefused
from outbox.protocol import names
from outbox.protocol.half import ANY_PARTITION, MAX_MILLISECONDS, Header, reserved_header

HeadersInput = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]


MAX_IMMUNITY_SECONDS = 3_600
"""RocketMQ's proxy allows as much (`maxTransactionRecoverySecond`)."""


def _stored(what: str, value: object) -> bytes | None:
    """A key or value as Kafka stores it; what it cannot store is refused, and no part of it is shown."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _stored_text(what, value)
    raise MessageRefused(
        f"the {what} is {type(value).__name__}: give bytes or text, or use outbox.serialization for objects"
    )


def _stored_name(name: object) -> bytes:
    """The name of a header; names that the client would cut (at a NUL) or that would crash it are refused."""
    return _checked_name(_text("name of a header", name))


def _text(what: str, given: object) -> str:
    if not isinstance(given, str):
        raise MessageRefused(f"the {what} is {type(given).__name__}: it must be text")
    return given


def _require_whole(what: str, number: object) -> None:
    """A half says numbers in digits: no relay could read `1.5` or `True`, and its message would be discarded."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise MessageRefused(f"the {what} is {type(number).__name__}: give a whole number")


@lru_cache(maxsize=1024)
def _checked_name(name: str) -> bytes:
    if "\0" in name:
        raise MessageRefused("the name of a header has a NUL, at which Kafka's client would cut it: remove it")
    if reserved_header([name]) is not None:
        raise MessageRefused(f"header {name!r} is reserved: choose a name without the prefix 'outbox-'")
    return _stored_text("name of a header", name)


@lru_cache(maxsize=1024)
def _check_topic(topic: str) -> None:
    if not names.is_topic_name(topic):
        raise MessageRefused(
            f"topic {topic!r} is not a name that Kafka allows: use 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
        )
    if names.looks_internal(topic):
        raise MessageRefused(
            f"topic {topic!r} has the name of an internal topic: choose one that does not begin with '__' "
            f"and does not end in {', '.join(names.INTERNAL_SUFFIXES)}"
        )


def _stored_text(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MessageRefused(
            f"the {what} is not valid UTF-8 (lone surrogate): give bytes, or correct the text"
        ) from None


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """A message for a real topic.

    Args:
        topic: Real topic; it must exist.
        value: Body, bytes or text (UTF-8); None is a tombstone.
        key: Key, bytes or text; the key of a transaction's first message is its ordering key.
        headers: A mapping, or pairs where names repeat or order matters. Names beginning with `outbox-` are refused.
        partition: Real queue id; -1 lets the key choose, as a Java producer would.
        timestamp: Your own timestamp, ms since 1970; None: the time at which the broker stored the half.
        check_immunity: Seconds after its half was stored in which nobody is asked what became of the transaction
            (RocketMQ: CHECK_IMMUNITY_TIME_IN_SECONDS), at most an hour; None: the relay's `transaction_timeout`.
            For a local transaction that is known to take long.

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
    _key: bytes | None = field(init=False, compare=False)  # what Kafka stores is made once, not at each use
    _value: bytes | None = field(init=False, compare=False)
    _headers: tuple[Header, ...] = field(init=False, compare=False)
    _size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse early what can be refused without asking the cluster."""
        _check_topic(_text("topic", self.topic))
        self._check_numbers()
        self._keep(_stored("key", self.key), _stored("value", self.value))

    def _keep(self, key: bytes | None, value: bytes | None) -> None:
        """Keep what Kafka stores, and its size."""
        headers: list[Header] = []
        size = len(key or b"") + len(value or b"")
        if self.headers:
            for name, given in self.headers.items() if isinstance(self.headers, Mapping) else self.headers:
                header = given if isinstance(given, bytes) else _stored(f"header {name!r}", given)
                size += len(_stored_name(name)) + len(header or b"")
                headers.append((name, header))
        keep = object.__setattr__
        keep(self, "_key", key)
        keep(self, "_value", value)
        keep(self, "_headers", tuple(headers))
        keep(self, "_size", size)

    def _check_numbers(self) -> None:
        _require_whole("partition", self.partition)
        if self.timestamp is not None:
            _require_whole("timestamp", self.timestamp)
        if self.partition < ANY_PARTITION:
            raise MessageRefused(f"partition {self.partition} is not a partition: use -1 for 'by key'")
        if self.timestamp is not None and self.timestamp < 1:
            raise MessageRefused(
                f"timestamp {self.timestamp} is not after 1970: give ms since 1970, or leave it out for now"
            )
        if self.timestamp is not None and self.timestamp > MAX_MILLISECONDS:
            raise MessageRefused(f"timestamp {self.timestamp} is too large: give ms since 1970")
        if self.check_immunity is not None and not 0 <= self.check_immunity <= MAX_IMMUNITY_SECONDS:
            raise MessageRefused(f"check_immunity is {self.check_immunity} s: use 0 to {MAX_IMMUNITY_SECONDS} seconds")

    def __repr__(self) -> str:
        """Topic and size only: no payload, key or header value ever reaches a log."""
        return f"Message(topic={self.topic!r}, {self.size()} bytes)"

    def key_bytes(self) -> bytes | None:
        """The key as Kafka stores it."""
        return self._key

    def value_bytes(self) -> bytes | None:
        """The value as Kafka stores it."""
        return self._value

    def header_list(self) -> list[Header]:
        """The headers as Kafka stores them, order and repeats kept."""
        return list(self._headers)

    def immunity_ms(self) -> int | None:
        """`check_immunity` in ms."""
        return None if self.check_immunity is None else round(self.check_immunity * 1000)

    def size(self) -> int:
        """Bytes of key, value and headers."""
        return self._size
