"""Checks that Kafka returns a checkpoint after its commit: a broker may have skipped its end marker (KAFKA-20734)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from outbox._kafka.admin import checked_properties

SECONDS = 4.0


def is_committed(kafka: Mapping[str, str], group: str, offsets: Sequence[TopicPartition]) -> bool:
    """Return whether these are the stable offsets of a group; False also if Kafka does not return them within 4 s."""
    with checked_properties():
        consumer = Consumer(
            {**kafka, "enable.auto.commit": False, "group.id": group, "isolation.level": "read_committed"}
        )
    try:
        found = consumer.committed([TopicPartition(place.topic, place.partition) for place in offsets], SECONDS)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return all(place.error is None for place in found) and [place.offset for place in found] == [
        place.offset for place in offsets
    ]
