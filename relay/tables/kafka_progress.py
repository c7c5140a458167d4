"""The progress of a table source in Kafka: the number of its last batch, as the committed offset of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from outbox._kafka.admin import checked_properties
from outbox._rules.source_progress import Committed
from outbox.errors import KafkaUnreachable
from outbox.protocol.names import Channel

TIMEOUT_SECONDS = 10.0


class KafkaProgress:
    """Reads the progress of one table source, and makes the offsets that commit it.

    No consumer ever joins the group. Its owner is fenced by the transactional id.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel; the offset is committed for partition 0 of its half topic.
        source: Name of the table source.
    """

    def __init__(self, kafka: Mapping[str, Any], channel: Channel, source: str) -> None:
        self.group = channel.table_group(source)
        self._topic = channel.half_topic
        with checked_properties():
            self._consumer = Consumer(
                {**kafka, "enable.auto.commit": False, "group.id": self.group, "isolation.level": "read_committed"}
            )
        self.metadata: bytes = self._consumer.consumer_group_metadata()
        """For `send_offsets_to_transaction`; it names no member."""

    def read(self) -> Committed | None:
        """Return what is committed; None: nothing.

        Raises:
            KafkaUnreachable: Kafka does not answer, or a Kafka transaction that wrote the offset has not ended yet.
        """
        try:
            (place,) = self._consumer.committed([TopicPartition(self._topic, 0)], TIMEOUT_SECONDS)
        except KafkaException as error:
            raise KafkaUnreachable(f"the progress of group {self.group}: {error.args[0].str()}") from error
        if place.error is not None:
            raise KafkaUnreachable(f"the progress of group {self.group}: {place.error.str()}")
        return None if place.offset < 0 else Committed(place.offset, place.metadata or "")

    def offsets(self, committed: Committed) -> list[TopicPartition]:
        """Return the offsets that commit the progress."""
        return [TopicPartition(self._topic, 0, committed.batch, committed.incarnation)]

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
