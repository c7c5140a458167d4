"""Pre-flight: whether a whole transaction can be delivered, before it enters a batch (R24). Pure.

One message that cannot be delivered sends its whole transaction to the discard topic, so that a batch never fails,
again and again, because of it.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from outbox._rules.topic_description import TopicDescription
from outbox.protocol.discard import DiscardReason
from outbox.protocol.fields import MAX_INT64
from outbox.protocol.half import ANY_PARTITION
from outbox.protocol.names import Channel, is_internal_topic
from relay.delivery.rules.allow_list import EVERYTHING, AllowList
from relay.delivery.rules.outgoing import Finding, OutgoingMessage, OutgoingTransaction, Target

LEADER_LOST = "the leader of one of its partitions does not answer"
UNDER_MIN_ISR = "it has partitions with fewer in-sync replicas than min.insync.replicas"

PASSING = frozenset(
    {
        DiscardReason.TOPIC_MISSING,
        DiscardReason.PARTITION_OUT_OF_RANGE,
        DiscardReason.NOT_AUTHORIZED,
        DiscardReason.TOPIC_UNAVAILABLE,
    }
)
"""Reasons that may pass by themselves: the transaction waits, see `topic_gate`. All others are final."""

_OF_NO_TOPIC = frozenset(
    {DiscardReason.INCOMPLETE, DiscardReason.MALFORMED, DiscardReason.FORBIDDEN, DiscardReason.PLATFORM_TOPIC}
)
"""Reasons that do not depend on how the cluster describes a topic."""

LookAgain = Callable[[set[str]], object]
"""Has real topics described again, whatever is remembered."""

T = TypeVar("T", bound=OutgoingTransaction)


@dataclass(frozen=True, slots=True)
class RealTopic:
    """What pre-flight must know of a real topic."""

    partitions: int
    max_message_bytes: int  # the largest record batch that it takes
    key_required: bool = False  # whether it is compacted
    oldest: int = MAX_INT64  # how far a timestamp may be behind the broker's time, ms
    newest: int = MAX_INT64  # how far it may be ahead, ms
    lacks: str = ""
    """The right that the relay lacks to write to it, with its topic; empty if it may, then the rest is known."""
    unavailable: str = ""  # why nothing can be written to it now, although it exists; empty if something can
    internal: bool = False  # whether it belongs to another channel

    def takes(self, partition: int) -> bool:
        """Whether it takes messages to this partition, or to any (`ANY_PARTITION`)."""
        is_open = not (self.lacks or self.unavailable or self.internal)
        return is_open and (partition == ANY_PARTITION or partition < self.partitions)


def real_topic(description: TopicDescription, unavailable: str = "", lost: AbstractSet[int] = frozenset()) -> RealTopic:
    """Return what pre-flight must know of a topic that the cluster describes."""
    if description.of_channel:
        return RealTopic(0, 0, internal=True)
    if description.lacks:
        return RealTopic(0, 0, lacks=description.lacks)
    if any(replicas.are_few(lost) for replicas in description.replicas):
        unavailable = unavailable or UNDER_MIN_ISR
    if any(replicas.leader in lost for replicas in description.replicas):
        unavailable = unavailable or LEADER_LOST
    settings = description.settings
    oldest = newest = MAX_INT64
    if settings.get("message.timestamp.type") != "LogAppendTime":  # there the broker writes its own time
        oldest = int(settings.get("message.timestamp.before.max.ms", MAX_INT64))
        newest = int(settings.get("message.timestamp.after.max.ms", MAX_INT64))
    return RealTopic(
        description.partitions,
        description.max_record_bytes,
        description.key_required,
        oldest,
        newest,
        unavailable=unavailable,
    )


def topics_of(transaction: OutgoingTransaction) -> set[str]:
    return {target.topic for message in transaction.counted() if (target := message.target())}


def inspect(
    transaction: OutgoingTransaction,
    topics: Mapping[str, RealTopic | None],
    channel: Channel,
    now: int | None = None,
    allowed: AllowList = EVERYTHING,
    more: int = 0,
    *,
    bodies: bool = True,
) -> Finding | None:
    """Return the first reason against delivering a transaction, or None; what may pass counts only if nothing is final.

    Args:
        now: The broker's time, ms; without it timestamps are not looked at.
        more: Bytes by which the longest origin header may be longer than that of a half.
        bodies: False: they may have been let go, and only where the messages shall go is looked at.
    """
    service = transaction.service
    gravest: Finding | None = None
    for message in transaction.counted():
        target = message.target()
        if target is None or message.error:
            finding: Finding | None = Finding(DiscardReason.MALFORMED, message.error)
        else:
            finding, topic = inspect_target(service, target, topics, channel, allowed), topics.get(target.topic)
            if bodies and topic is not None and finding is None:
                finding = inspect_record(service, message, target.topic, topic, now, more)
        if finding is not None:
            gravest = _graver(gravest, finding)
    return gravest


def refused(transactions: Sequence[T], judge: Callable[[T], Finding | None], look_again: LookAgain) -> dict[T, Finding]:
    """Return those of some transactions that cannot be delivered, and why.

    What was remembered of a topic may be older than its mending: before anything is refused for it, all such topics are
    described once more (R83).
    """
    found = {transaction: finding for transaction in transactions if (finding := judge(transaction))}
    topics = {name for one, finding in found.items() if finding.reason not in _OF_NO_TOPIC for name in topics_of(one)}
    if not topics:
        return found
    look_again(topics)
    return {transaction: finding for transaction in found if (finding := judge(transaction))}


def _graver(known: Finding | None, finding: Finding) -> Finding:
    """Of two findings the final one, else the first."""
    return finding if known is None or (known.reason in PASSING and finding.reason not in PASSING) else known


def inspect_target(
    service: str, target: Target, topics: Mapping[str, RealTopic | None], channel: Channel, allowed: AllowList
) -> Finding | None:
    """Return what is against all messages of a service to one target, or None."""
    topic = topics.get(target.topic)
    if is_internal_topic(target.topic, channel) or (topic is not None and topic.internal):
        return Finding(DiscardReason.INTERNAL_TOPIC, f"topic {target.topic} is internal")
    if not allowed.allows(service, target.topic):
        return Finding(DiscardReason.FORBIDDEN, f"service {service} may not write to topic {target.topic}")
    if allowed.protects(service, target.topic):
        return Finding(DiscardReason.PLATFORM_TOPIC, f"topic {target.topic} is named as one of another platform")
    return None if topic is not None and topic.takes(target.partition) else _inspect_topic(target, topic)


def _inspect_topic(target: Target, topic: RealTopic | None) -> Finding:
    """Return what keeps a message from a real topic that does not take it, and may pass."""
    if topic is None:
        return Finding(DiscardReason.TOPIC_MISSING, f"topic {target.topic} does not exist")
    if topic.lacks:
        return Finding(DiscardReason.NOT_AUTHORIZED, f"the relay lacks {topic.lacks}")
    if topic.unavailable:
        return Finding(DiscardReason.TOPIC_UNAVAILABLE, f"topic {target.topic}: {topic.unavailable}")
    return Finding(
        DiscardReason.PARTITION_OUT_OF_RANGE,
        f"topic {target.topic} has {topic.partitions} partitions, the message names partition {target.partition}",
    )


def inspect_record(
    service: str, message: OutgoingMessage, name: str, topic: RealTopic, now: int | None, more: int = 0
) -> Finding | None:
    """Return what a real topic has against a message itself, or None; see `inspect`."""
    limit = topic.max_message_bytes
    age = 0 if now is None else now - message.timestamp()
    if topic.key_required and message.key is None:
        return Finding(DiscardReason.KEY_REQUIRED, f"topic {name} is compacted and the message has no key")
    if not message.is_small(limit - more):
        size = message.record_size(service) + more
        if size > limit:
            return Finding(DiscardReason.TOO_LARGE, f"{size} bytes, topic {name} allows {limit}")
    if not -topic.newest <= age <= topic.oldest:
        when = f"{age} ms old" if age >= 0 else f"{-age} ms in the future"
        allowed = f"up to {topic.oldest} ms old, and {topic.newest} ms in the future"
        return Finding(DiscardReason.TIMESTAMP, f"its timestamp is {when}, topic {name} allows {allowed}")
    return None
