"""Pre-flight: whether a whole transaction can be delivered, before it enters a batch (R24). Pure.

One message that cannot be delivered sends its whole transaction to the discard topic, so that a batch never fails,
again and again, because of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outbox.channel import TopicDescription
from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import ANY_PARTITION, HalfControl
from outbox.protocol.names import Channel, is_internal_topic
from relay.half import Half
from relay.transaction import Transaction

RECORD_OVERHEAD = 256
"""Bytes allowed for the record's own fields and the headers that the relay adds."""


@dataclass(frozen=True, slots=True)
class RealTopic:
    """What pre-flight must know of a real topic.

    Args:
        partitions: How many it has.
        max_message_bytes: Its `max.message.bytes`.
        key_required: Whether it is compacted.
    """

    partitions: int
    max_message_bytes: int
    key_required: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a transaction cannot be delivered."""

    reason: DiscardReason
    detail: str


def real_topic(description: TopicDescription) -> RealTopic:
    """What pre-flight must know of a topic that the cluster describes."""
    compacted = "compact" in description.settings.get("cleanup.policy", "")
    return RealTopic(description.partitions, description.max_message_bytes, compacted)


def targets(transaction: Transaction) -> set[str]:
    """The real topics of a transaction."""
    return {half.control.topic for half in transaction.counted() if half.control}


def inspect(transaction: Transaction, topics: Mapping[str, RealTopic], channel: Channel) -> Finding | None:
    """The first reason against delivering a transaction, or None.

    Args:
        transaction: A committed transaction.
        topics: The real topics that exist, by name.
        channel: The channel, whose own topics can never be targets.
    """
    if not transaction.complete():
        missing = len(transaction.decision.positions) - len(transaction.counted()) if transaction.decision else 0
        return Finding(DiscardReason.INCOMPLETE, f"{missing} of its messages are not in the half topic")
    findings = (_inspect(half, half.control, topics, channel) for half in transaction.counted() if half.control)
    return next((finding for finding in findings if finding), None)


def _inspect(half: Half, control: HalfControl, topics: Mapping[str, RealTopic], channel: Channel) -> Finding | None:
    name = control.topic
    if is_internal_topic(name, channel):
        return Finding(DiscardReason.INTERNAL_TOPIC, f"topic {name} is internal")
    topic = topics.get(name)
    if topic is None:
        return Finding(DiscardReason.TOPIC_MISSING, f"topic {name} does not exist")
    if control.partition != ANY_PARTITION and control.partition >= topic.partitions:
        return Finding(
            DiscardReason.PARTITION_OUT_OF_RANGE,
            f"topic {name} has {topic.partitions} partitions, the message names partition {control.partition}",
        )
    if topic.key_required and half.key is None:
        return Finding(DiscardReason.KEY_REQUIRED, f"topic {name} is compacted and the message has no key")
    if record_size(half) > topic.max_message_bytes:
        return Finding(
            DiscardReason.TOO_LARGE, f"{record_size(half)} bytes, topic {name} allows {topic.max_message_bytes}"
        )
    return None


def record_size(half: Half) -> int:
    """An upper bound of the real record's size in bytes."""
    headers = sum(len(name) + len(value or b"") + 10 for name, value in half.headers)
    return len(half.key or b"") + len(half.value or b"") + headers + RECORD_OVERHEAD
