"""Finds whether a hanging transaction of a half partition has no end on the partitions that it wrote to, either."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import describe_topics, end_offset
from outbox._kafka.channel import ChannelDescription
from outbox.errors import KafkaUnreachable
from outbox.protocol.checkpoint import HalfCheckpoint
from relay.batching.delivered_record import Written, is_made_of, parse_delivered
from relay.kafka.decode import Decoder
from relay.kafka.half_reader import HalfReader
from relay.kafka.offset_reader import OffsetReader
from relay.recovery.hanging_transactions import as_record


class Held(enum.Enum):
    """What readers have seen of a hanging transaction on a partition."""

    ITSELF = "nothing: its own record is the first one that they do not see"
    BY_OTHERS = "nothing yet: a record of another transaction is the first one that they do not see"
    SEEN = "perhaps something"


class Hold:
    """What holds partitions back that a hanging transaction of a half partition wrote to.

    Args:
        kafka: librdkafka properties for the connection.
        admin: Client of the cluster.
        channel: The channel.
        number: Number of the half partition.
        checkpoint: The one before the transaction.
    """

    def __init__(
        self,
        kafka: Mapping[str, str],
        admin: AdminClient,
        channel: ChannelDescription,
        number: int,
        checkpoint: HalfCheckpoint,
    ) -> None:
        self._kafka = kafka
        self._admin = admin
        self._channel = channel
        self._number = number
        self._checkpoint = checkpoint

    def of(self, places: Sequence[tuple[str, int]]) -> set[Held]:
        """Return what holds some topics and partitions back.

        Raises:
            KafkaUnreachable: A partition does not answer.
            ConfigurationError: A right is missing.
        """
        there = describe_topics(self._admin, sorted({topic for topic, _ in places})) if places else {}
        return {self._held(*place) if place[0] in there else Held.SEEN for place in places}

    def _held(self, topic: str, partition: int) -> Held:
        end = end_offset(self._admin, topic, partition)
        stable = end_offset(self._admin, topic, partition, stable=True)
        if end is None or stable is None:
            raise KafkaUnreachable(f"{topic}/{partition} has no leader that answers")
        if stable >= end:
            return Held.SEEN
        if topic == self._channel.discard.name:  # no other process writes to that partition
            return Held.ITSELF
        return Held.ITSELF if self._is_own(self._record_at(topic, partition, stable)) else Held.BY_OTHERS

    def _record_at(self, topic: str, partition: int, offset: int) -> Written | None:
        group = self._channel.channel.relay_group
        reader = OffsetReader(self._kafka, topic, partition, group, isolation="read_uncommitted")
        try:
            return next((parse_delivered(as_record(message), offset) for message in reader.read_at([offset])), None)
        finally:
            reader.close()

    def _is_own(self, record: Written | None) -> bool:
        """Whether a record was made of a half of this partition that the checkpoint owes."""
        if record is None or record.half_partition != self._number or not self._checkpoint.owes(record.half_offset):
            return False
        decoder = Decoder(self._channel.discard.max_message_bytes)
        halves = HalfReader(self._kafka, self._channel.channel, self._number, decoder)
        try:
            half = halves.find([record.half_offset]).get(record.half_offset)
        finally:
            halves.close()
        return half is not None and is_made_of(record, half)
