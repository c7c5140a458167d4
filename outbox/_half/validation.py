"""Refuse at `publish()`, before anything is written, a message that the relay could not deliver (R24, R48)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from outbox._half.sender import Sender
from outbox._kafka.channel import ChannelDescription
from outbox._publish.acceptance import internal, refuse_internal
from outbox._publish.waiting import Budget
from outbox._rules.topic_description import TopicDescription
from outbox.errors import MessageRefused
from outbox.message import Message
from outbox.protocol.half import ANY_PARTITION, Truth
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


class PlannedHalf(NamedTuple):
    """The largest possible half of a message, before its transaction id and its position are known.

    Args:
        messages: Number of messages of the transaction, with this one.
    """

    make: Callable[[], Record]
    service: str
    truth: Truth
    ordering_key: bytes | None
    messages: int


def refuse(message: Message, planned: PlannedHalf, sender: Sender, budget: Budget) -> None:
    refuse_internal(message.topic, sender.channel_names)
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
    """Return why a real topic does not accept a message; an empty text if it does.

    Args:
        largest: Upper bound of the size of any record made from the message, bytes.
        topic: The topic's description; None if it does not exist.
    """
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
