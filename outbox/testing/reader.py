"""Read what is visible to read_committed consumers, and whether the relay has settled all halves."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox._kafka.consumed_records import headers_of
from outbox.protocol.half import Header
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER, Channel

_TIMEOUT = 10.0


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


def read_committed(kafka: Mapping[str, str], topics: Sequence[str], timeout: float = 60.0) -> list[VisibleRecord]:
    """Return all visible records of some topics, up to the last stable offset of each partition.

    Args:
        kafka: librdkafka properties for the connection.
        topics: Topics, which must exist.
        timeout: Maximum seconds to reach the ends of all partitions.

    Raises:
        TimeoutError: They were not reached in time.
    """
    with _consumer(kafka, f"reader-{uuid.uuid4()}") as consumer:
        places = [TopicPartition(topic, number, 0) for topic in topics for number in _partitions(consumer, topic)]
        consumer.assign(places)
        found: list[VisibleRecord] = []
        unfinished = {(place.topic, place.partition) for place in places}
        deadline = time.monotonic() + timeout
        while unfinished:
            if time.monotonic() > deadline:
                raise TimeoutError(f"The ends of {sorted(unfinished)} were not reached within {timeout} s.")
            for message in consumer.consume(5_000, 0.2):
                if _is_end(message):
                    unfinished.discard((message.topic() or "", message.partition() or 0))
                else:
                    found.append(_record(message))
    return sorted(found, key=lambda record: record[:3])


def settled(kafka: Mapping[str, str], channel: Channel) -> bool:
    """Return whether every half of a channel is settled: all committed offsets are at the ends of their partitions."""
    with _consumer(kafka, channel.relay_group) as consumer:
        topic = channel.half_topic
        places = [TopicPartition(topic, number) for number in _partitions(consumer, topic)]
        committed = consumer.committed(places, _TIMEOUT)
        return all(place.offset == consumer.get_watermark_offsets(place, _TIMEOUT)[1] for place in committed)


@contextmanager
def _consumer(kafka: Mapping[str, str], group: str) -> Iterator[Consumer]:
    """Open a consumer for manual assignment that commits no offsets."""
    consumer = Consumer(
        {
            "fetch.wait.max.ms": 50,
            **kafka,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    return sorted(consumer.list_topics(topic, _TIMEOUT).topics[topic].partitions)


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes carry an underscore
        return True
    raise KafkaException(error)


def _record(message: Any) -> VisibleRecord:
    return VisibleRecord(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        headers_of(message),
        message.timestamp()[1],
    )
