"""Why checkpoints cannot be read: a transaction without an end, a missing right, or a Kafka that does not answer."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from outbox._kafka.groups import is_group_refused
from outbox.errors import KafkaUnreachable

CHECKPOINT_SECONDS = 4.0
"""For committed offsets, and the ends of their topics. Their transactions have ended when they are asked for, so that
Kafka need not wait for any."""

HELD_BACK = "holds the checkpoint back for a transaction that is still open"
"""What Kafka does then. After the former owner was fenced none should be open."""


class HeldBackError(KafkaUnreachable):
    """Kafka holds a checkpoint or discard records back for a transaction without an end."""


def why_unreadable(
    error: KafkaException, kafka: Mapping[str, str], group: str, place: tuple[str, int]
) -> KafkaUnreachable:
    """Return why checkpoints could not be read: Kafka has them, but holds them back, or a right is missing, or else.

    Args:
        error: Of a read with `read_committed`.
        group: Consumer group of the checkpoints.
        place: Topic and partition of one of them.
    """
    cause: KafkaError = error.args[0]
    unknown = KafkaUnreachable(f"{cause.str()}")
    if cause.code() != KafkaError._TIMED_OUT:  # noqa: SLF001 - librdkafka's own codes carry an underscore
        return unknown
    consumer = Consumer({**kafka, "group.id": group, "isolation.level": "read_uncommitted"})
    try:
        consumer.committed([TopicPartition(*place)], CHECKPOINT_SECONDS)
    except KafkaException:
        refused = f"the relay lacks the right READ on group {group}. Grant it."
        return KafkaUnreachable(refused) if is_group_refused(consumer) else unknown
    finally:
        consumer.close()
    return HeldBackError(f"Kafka {HELD_BACK}. If this persists, see docs/operations/recovery.md")
