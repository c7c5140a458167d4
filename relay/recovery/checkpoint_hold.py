"""Finds whether a hanging transaction has no end on the partitions that it wrote to, either."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import describe_topics, end_offset
from outbox.errors import KafkaUnreachable
from outbox.protocol.names import Channel
from relay.recovery.author import Author, Found
from relay.recovery.hanging_transactions import as_record
from relay.recovery.offset_reader import OffsetReader


class Held(enum.Enum):
    """What readers have seen of a hanging transaction on a partition."""

    ITSELF = "nothing: its own record is the first one that they do not see"
    BY_OTHERS = "nothing yet: a record of another transaction is the first one that they do not see"
    SEEN = "perhaps something"


class Hold:
    """What holds partitions back that a hanging transaction wrote to.

    Args:
        author: Recognises what the checkpoint before the transaction owes.
    """

    def __init__(self, kafka: Mapping[str, str], admin: AdminClient, channel: Channel, author: Author) -> None:
        self._kafka = kafka
        self._admin = admin
        self._channel = channel
        self._author = author

    def of(self, places: Sequence[tuple[str, int]]) -> set[Held]:
        """Return what holds some topics and partitions back."""
        there = describe_topics(self._admin, sorted({topic for topic, _ in places})) if places else {}
        return {self._held(*place) if place[0] in there else Held.SEEN for place in places}

    def _held(self, topic: str, partition: int) -> Held:
        end = end_offset(self._admin, topic, partition)
        stable = end_offset(self._admin, topic, partition, stable=True)
        if end is None or stable is None:
            raise KafkaUnreachable(f"{topic}/{partition} has no leader that answers")
        if stable >= end:
            return Held.SEEN
        if topic == self._channel.discard_topic:  # no other process writes to that partition
            return Held.ITSELF
        own = self._author.last_own(self._record_at(topic, partition, stable), ())
        return Held.ITSELF if own is not None and own.is_owed else Held.BY_OTHERS

    def _record_at(self, topic: str, partition: int, offset: int) -> Sequence[Found]:
        group = self._channel.relay_group
        reader = OffsetReader(self._kafka, topic, partition, group, isolation="read_uncommitted")
        try:
            return [Found(as_record(message), offset) for message in reader.read_at([offset])]
        finally:
            reader.close()
