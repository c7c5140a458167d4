"""Read what is visible to read_committed consumers, and whether the relay has settled all halves."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outbox._kafka.consumed_records import headers_of
from outbox._kafka.groups import committed_checkpoints
from outbox._kafka.range_reader import SpanReader
from outbox.errors import UsageError
from outbox.protocol.half import Header
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER, Channel


class VisibleRecord(NamedTuple):
    """A record that is visible to read_committed consumers; sorts by topic, partition and offset."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp: int

    @property
    def message_id(self) -> str:
        """Id in the relay's header `outbox-id`, or an empty text."""
        return (dict(self.headers).get(MESSAGE_ID_HEADER) or b"").decode()

    @property
    def origin(self) -> tuple[int, int]:
        """Half partition and half offset in the relay's header."""
        partition, _, offset = (dict(self.headers)[ORIGIN_HEADER] or b"").decode().partition("/")
        return int(partition), int(offset)


def read_committed(kafka: Mapping[str, str], topics: Sequence[str]) -> list[VisibleRecord]:
    """Return all visible records of some topics, up to the last stable offset of each partition.

    Args:
        kafka: librdkafka properties for the connection.
        topics: Topics, which must exist.

    Raises:
        UsageError: A topic does not exist, or may not be described.
        ConfigurationError: Kafka does not answer, or refuses.
    """
    with SpanReader(kafka, f"reader-{uuid.uuid4()}") as reader:
        spans = [reader.whole(topic, number) for topic in topics for number in _partitions(reader, topic)]
        return sorted(map(_record, reader.read(spans)), key=lambda record: record[:3])


def settled(kafka: Mapping[str, str], channel: Channel) -> bool:
    """Return whether every half of a channel is settled: all committed offsets are at the ends of their partitions."""
    topic, group = channel.half_topic, channel.relay_group
    with SpanReader(kafka, group) as reader:
        places = [(topic, number) for number in _partitions(reader, topic)]
        committed = committed_checkpoints(kafka, group, places, stable=False)
        return all(place in committed and committed[place].offset == reader.whole(*place).stop for place in places)


def _partitions(reader: SpanReader, topic: str) -> range:
    if not (found := reader.partitions(topic)):
        raise UsageError(f"Topic {topic!r} does not exist, or may not be described. Create it, or correct its name.")
    return found


def _record(message: Any) -> VisibleRecord:
    place = message.topic(), message.partition(), message.offset()
    return VisibleRecord(*place, message.key(), message.value(), headers_of(message), message.timestamp()[1])
