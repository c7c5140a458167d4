"""Messages as applications write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outbox.errors import MessageRefused
from outbox.protocol import names
from outbox.protocol.half import ANY_PARTITION, MAX_MILLISECONDS, Header, reserved_header

HeadersInput = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]


MAX_IMMUNITY_SECONDS = 3_600
"""RocketMQ's proxy allows as much (`maxTransactionRecoverySecond`)."""


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _require_bytes(what: str, value: object) -> None:
    """Refuse what Kafka cannot store; no part of it is shown."""
    if isinstance(value, str):
        _require_text(what, value)
    elif value is not None and not isinstance(value, bytes):
        raise MessageRefused(
            f"the {what} is {type(value).__name__}: give bytes or text, or use outbox.serialization for objects"
        )


def _require_header_name(name: object) -> None:
    """Refuse names that the client would cut (at a NUL) or that would crash it."""
    if not isinstance(name, str):
        raise MessageRefused(f"a header's name is {type(name).__name__}: it must be text")
    _require_text("name of a header", name)
    if "\0" in name:
        raise MessageRefused("the name of a header has a NUL, at which Kafka's client would cut it")


def _require_text(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MessageRefused(f"the {what} is text that UTF-8 cannot say (a lone surrogate)") from None


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
        Message(topic='orders', 2 bytes)
    """

    topic: str
    value: bytes | str | None = None
    key: bytes | str | None = None
    headers: HeadersInput = field(default=())
    partition: int = ANY_PARTITION
    timestamp: int | None = None
    check_immunity: float | None = None

    def __post_init__(self) -> None:
        """Refuse early what can be refused without asking the cluster."""
        if not names.is_topic_name(self.topic):
            raise MessageRefused(f"topic {self.topic!r} is not a name that Kafka allows")
        if names.looks_internal(self.topic):
            raise MessageRefused(f"topic {self.topic!r} is internal and can never be a message's target")
        for what, value in (("key", self.key), ("value", self.value)):
            _require_bytes(what, value)
        self._check_headers()
        self._check_numbers()

    def _check_headers(self) -> None:
        for name, value in self._header_pairs():
            _require_header_name(name)
            _require_bytes(f"header {name!r}", value)
        reserved = reserved_header(name for name, _ in self._header_pairs())
        if reserved is not None:
            raise MessageRefused(f"header {reserved!r} is reserved: choose a name without the prefix 'outbox-'")

    def _check_numbers(self) -> None:
        if self.partition < ANY_PARTITION:
            raise MessageRefused(f"partition {self.partition} is not a partition: use -1 for 'by key'")
        if self.timestamp is not None and self.timestamp < 1:
            raise MessageRefused(
                f"timestamp {self.timestamp} does not lie after 1970; Kafka's client takes 0 for 'now'"
            )
        if self.timestamp is not None and self.timestamp > MAX_MILLISECONDS:
            raise MessageRefused(f"timestamp {self.timestamp} is not in milliseconds since 1970")
        if self.check_immunity is not None and not 0 <= self.check_immunity <= MAX_IMMUNITY_SECONDS:
            raise MessageRefused(f"check_immunity is {self.check_immunity} s: use 0 to {MAX_IMMUNITY_SECONDS} seconds")

    def __repr__(self) -> str:
        """Topic and size only: no payload, key or header value ever reaches a log."""
        return f"Message(topic={self.topic!r}, {self.size()} bytes)"

    def key_bytes(self) -> bytes | None:
        """The key as Kafka stores it."""
        return _bytes(self.key)

    def value_bytes(self) -> bytes | None:
        """The value as Kafka stores it."""
        return _bytes(self.value)

    def header_list(self) -> list[Header]:
        """The headers as Kafka stores them, order and repeats kept."""
        return [(name, _bytes(value)) for name, value in self._header_pairs()]

    def _header_pairs(self) -> Iterable[tuple[str, bytes | str | None]]:
        return self.headers.items() if isinstance(self.headers, Mapping) else self.headers

    def immunity_ms(self) -> int | None:
        """`check_immunity` in ms."""
        return None if self.check_immunity is None else round(self.check_immunity * 1000)

    def size(self) -> int:
        """Bytes of key, value and headers."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.header_list())
        return len(self.key_bytes() or b"") + len(self.value_bytes() or b"") + headers
