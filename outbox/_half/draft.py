"""A draft: the messages published in one local transaction through one outbox, before the seal.

A message that the relay could not deliver is refused at `publish()`, before anything is written (R24, R48).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

from outbox._half.sender import Sender
from outbox._kafka.channel import ChannelDescription
from outbox._publish.acceptance import (
    MAX_BYTES,
    MAX_MESSAGES,
    internal,
    refuse_internal,
    too_many_bytes,
    too_many_messages,
)
from outbox._publish.waiting import Budget
from outbox._rules.topic_description import TopicDescription
from outbox.errors import MessageRefused
from outbox.message import Message
from outbox.protocol.half import ANY_PARTITION, HalfOptions, OutgoingHeaders, Truth, control_headers
from outbox.protocol.positions import MAX_POSITION, Positions
from outbox.protocol.record import Record
from outbox.protocol.size import (
    check_record_size,
    discard_record_size,
    largest_size,
    manifest_record_size,
    quoted_size,
    real_record_size,
    record_size,
)
from outbox.transaction import Receipt


class PlannedHalf(NamedTuple):
    """The largest half of a message, the `messages`-th of its transaction, before id and position are known."""

    make: Callable[[], Record]
    service: str
    truth: Truth
    ordering_key: bytes | None
    messages: int


def refuse(message: Message, planned: PlannedHalf, sender: Sender, budget: Budget) -> None:
    refuse_internal(message.topic, sender.channel_names)
    if message.not_before is not None:
        raise MessageRefused("not_before is for table mode: a half cannot wait for a time. Publish it when it is due.")
    size = largest_size(message.size(), len(message.headers), planned.ordering_key, planned.messages)
    problem = _why_not(message, planned, size, sender.real_topic(message.topic, budget))
    if problem:  # the cached description may be older than the last change of the topic
        problem = _why_not(message, planned, size, sender.real_topic_now(message.topic, budget))
    if problem:
        raise MessageRefused(problem)
    channel, max_half_bytes = sender.channel, sender.max_half_bytes
    if size > min(max_half_bytes, channel.check.max_record_bytes, channel.discard.max_record_bytes):
        _refuse_large_half(planned, channel, max_half_bytes)


def _why_not(message: Message, planned: PlannedHalf, largest: int, topic: TopicDescription | None) -> str:
    """Return why a topic (None: there is none) refuses a record of up to `largest` bytes; empty if it does not."""
    problem = why_not_for(message, topic)
    if problem or topic is None or largest <= topic.max_record_bytes:
        return problem
    return _too_large(message, planned, topic)


def why_not_for(message: Message, topic: TopicDescription | None) -> str:
    """Return why a real topic does not accept a message of any size; an empty text if it does."""
    if topic is None:
        return f"Topic {message.topic!r} does not exist. Create it, or correct its name."
    if topic.of_channel:
        return internal(message.topic)
    if message.partition != ANY_PARTITION and message.partition >= topic.partitions:
        return (
            f"Partition {message.partition} does not exist: topic {message.topic!r} has {topic.partitions} partitions. "
            "Give a lower number, or -1 for 'by key'."
        )
    if topic.key_required and message.key_bytes() is None:
        return f"Topic {message.topic!r} is compacted and the message has no key. Give it a key."
    return ""


def _too_large(message: Message, planned: PlannedHalf, topic: TopicDescription) -> str:
    size = real_record_size(message.key_bytes(), message.value_bytes(), message.header_list(), planned.service)
    if size <= topic.max_record_bytes:
        return ""
    return (
        f"The message would have {size} bytes with its headers on topic {message.topic!r}, which takes at most "
        f"{topic.max_record_bytes} bytes (max.message.bytes). Make the message smaller, or raise the topic's limit."
    )


def _refuse_large_half(planned: PlannedHalf, channel: ChannelDescription, max_half_bytes: int) -> None:
    """Refuse a half that is too large for the half topic, or for another internal topic that may receive it."""
    half, service = planned.make(), planned.service
    content = half.key, half.value, half.headers
    _require_fit(planned, "half message", record_size(*content), channel.half, max_half_bytes)
    _require_fit(planned, "half message in an envelope", discard_record_size(*content), channel.discard)
    if planned.truth is Truth.LISTENER:
        _require_fit(planned, "check request", check_record_size(*content, service), channel.check)
    manifest = manifest_record_size(planned.messages, planned.ordering_key, service)
    _require_fit(planned, f"manifest of a transaction of {planned.messages} messages", manifest, channel.discard)


def _require_fit(planned: PlannedHalf, what: str, size: int, topic: TopicDescription, limit: int | None = None) -> None:
    limit = topic.max_record_bytes if limit is None else limit
    if size > limit:
        raise MessageRefused(
            f"The {what} would have {size} bytes with its control headers ({quoted_size(planned.ordering_key)} for the "
            f"ordering key), but topic {topic.name!r} takes at most {limit} bytes (max.message.bytes). "
            "Make the message, its headers or the key of the transaction's first message smaller, or raise the limit."
        )


_LONGEST_ID = "00000000-0000-7000-8000-000000000000"
"""Placeholder for an incarnation; all incarnations have this length."""


class Draft:
    """The messages of one transaction before the seal; each attempt has a new transaction id (R2)."""

    def __init__(self, transaction_id: str) -> None:
        self.transaction_id = transaction_id
        self._messages: list[tuple[int, Message]] = []
        self._next_position = 0
        self._bytes = 0
        self._sent = 0

    def __len__(self) -> int:
        """Return the number of messages, without removed ones."""
        return len(self._messages)

    def add(self, messages: Sequence[Message]) -> list[Receipt]:
        """Add messages, all or none."""
        if self._next_position + len(messages) > MAX_MESSAGES:
            raise MessageRefused(too_many_messages())
        if self._bytes + sum(message.size() for message in messages) > MAX_BYTES:
            raise MessageRefused(too_many_bytes())
        return [self._add(message) for message in messages]

    def _add(self, message: Message) -> Receipt:
        position = self._next_position
        self._next_position += 1  # first: a signal handler may raise between these lines
        self._messages.append((position, message))
        self._bytes += message.size()
        return Receipt(self.transaction_id, position, message.topic)

    def strike(self, keep: int) -> None:
        """Remove all but the first `keep` messages: their SAVEPOINT was rolled back. Positions are not reused."""
        self._bytes -= sum(message.size() for _, message in self._messages[keep:])
        del self._messages[keep:]

    @property
    def positions(self) -> Positions:
        return Positions.of(position for position, _ in self._messages)

    @property
    def ordering_key(self) -> bytes | None:
        return self._messages[0][1].key_bytes()

    @property
    def has_unsent(self) -> bool:
        """Whether there are messages that `take_unsent()` has not returned."""
        return len(self._messages) > self._sent

    def planned(self, messages: Sequence[Message], service: str, topic: str) -> list[PlannedHalf]:
        """Return the largest half that each of the messages could have, which are not added yet."""
        ordering_key = self.ordering_key if self._messages else messages[0].key_bytes()
        make = partial(self._largest_half, service=service, topic=topic, ordering_key=ordering_key)
        return [
            PlannedHalf(partial(make, message), service, Truth.ROW, ordering_key, count)
            for count, message in enumerate(messages, len(self._messages) + 1)
        ]

    def _largest_half(self, message: Message, service: str, topic: str, ordering_key: bytes | None) -> Record:
        options = partial(_options, _LONGEST_ID, ordering_key)
        headers = self._headers(MAX_POSITION, message, service, ordering_key, options)
        return Record(topic, ANY_PARTITION, message.key_bytes(), message.value_bytes(), headers)

    def take_unsent(self, service: str, incarnation: str, topic: str, partition: int) -> list[tuple[int, Record]]:
        """Return positions and halves of the messages that were not returned before, for a half topic."""
        taken, self._sent = self._messages[self._sent :], len(self._messages)
        ordering_key = self.ordering_key
        options = cache(partial(_options, incarnation, ordering_key))
        halves = []
        for position, message in taken:
            headers = self._headers(position, message, service, ordering_key, options)
            halves.append((position, Record(topic, partition, message.key_bytes(), message.value_bytes(), headers)))
        return halves

    def _headers(
        self, position: int, message: Message, service: str, ordering_key: bytes | None, options: _Options
    ) -> OutgoingHeaders:
        encoded = options(message.key_bytes() == ordering_key, message.timestamp, message.immunity_ms())
        control = control_headers(
            message.topic, message.partition, self.transaction_id, position, service, Truth.ROW, encoded
        )
        return [*control, *message.header_list()]


_Options = Callable[[bool, int | None, int | None], bytes]


def _options(
    incarnation: str,
    ordering_key: bytes | None,
    has_ordering_key: bool,  # noqa: FBT001 - a cached function called with positional arguments
    timestamp: int | None,
    immunity: int | None,
) -> bytes:
    """Encode the options of a half, which are the same for nearly all halves of a transaction."""
    ordering = None if has_ordering_key else (ordering_key,)
    return HalfOptions(timestamp, immunity, ordering, incarnation).encode()
