"""The progress of a table source in Kafka: the number of its last batch, as the committed offset of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from outbox._kafka.admin import checked_properties
from outbox._rules.source_progress import Committed
from outbox.errors import KafkaUnreachable
from outbox.protocol.names import Channel
from relay.delivery.call_watch import calling
from relay.recovery.hanging_checkpoint import CHECKPOINT_SECONDS, Checkpointed, Word, refuse_undone_end, why_unreadable


class KafkaProgress:
    """Reads the progress of one table source, and makes the offsets that commit it.

    No consumer ever joins the group. Its owner is fenced by the transactional id.

    Args:
        channel: The channel; the offset is committed for partition 0 of its half topic.
    """

    def __init__(self, kafka: Mapping[str, Any], channel: Channel, source: str, word: Word) -> None:
        self.owner = Checkpointed.table_source(channel, source)
        self.group = self.owner.group
        self._kafka = kafka
        self._word = word
        with checked_properties():
            self._consumer = Consumer(
                {**kafka, "enable.auto.commit": False, "group.id": self.group, "isolation.level": "read_committed"}
            )
        self.metadata: bytes = self._consumer.consumer_group_metadata()
        """For `send_offsets_to_transaction`; it names no member."""

    def read(self) -> Committed | None:
        """Return what is committed; None: nothing."""
        try:
            with calling(f"reading the progress of {self.owner.name}"):
                (place,) = self._consumer.committed([TopicPartition(*self.owner.place)], CHECKPOINT_SECONDS)
        except KafkaException as error:
            raise why_unreadable(error, self._kafka, self.group, self.owner.place) from error
        if place.error is not None:
            raise KafkaUnreachable(f"the progress of group {self.group}: {place.error.str()}")
        committed = None if place.offset < 0 else place
        refuse_undone_end(self._kafka, self.owner, committed, self._word)
        return None if committed is None else Committed.parse(committed.offset, committed.metadata)

    def offsets(self, committed: Committed) -> list[TopicPartition]:
        """Return the offsets that commit the progress."""
        return [TopicPartition(*self.owner.place, committed.batch, committed.metadata)]

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
