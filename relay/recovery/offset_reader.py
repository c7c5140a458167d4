"""Reads records of one partition by their offsets, beside the subscribed consumer."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import checked_properties, end_offsets
from outbox._kafka.topic_cache import TopicCache
from outbox._service.periodic import Periodic
from outbox.errors import ConfigurationError, KafkaUnreachable
from relay import metrics
from relay.delivery.call_watch import calling

TIMEOUT_SECONDS = 10.0
"""Maximum time for one answer of Kafka."""

POLL_SECONDS = 0.2
READ_AT_ONCE = 1_000
NEAR = 250
"""Records that are rather read through than skipped: a skip takes about as long, and no turn at the interpreter."""
REST_SECONDS = 10.0
"""Time after the last read until the connection goes: each has threads of its own, and most partitions need none."""


class OffsetReader:
    """A consumer of no group, for one partition. It connects at the first read, and again after a rest."""

    def __init__(
        self, kafka: Mapping[str, str], topic: str, partition: int, group: str, isolation: str = "read_committed"
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._stopped = False
        self._consumer: Consumer | None = None
        self._read_at = 0.0
        self._config = {
            "auto.offset.reset": "earliest",  # compaction may have removed the first records
            "fetch.message.max.bytes": 65_536,  # a skip would throw most of a larger answer away
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 100,
            **kafka,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "group.id": group,  # never joined, but a client that may read for the relay may read in its name
            "isolation.level": isolation,
        }

    def _connected(self) -> Consumer:
        if self._consumer is None:
            with checked_properties():
                self._consumer = Consumer(self._config)
        self._read_at = time.monotonic()
        return self._consumer

    def read_on(self, offset: int) -> Iterator[Message]:
        """Yield the records from an offset to the end of the partition."""
        consumer = self._connected()
        consumer.assign([TopicPartition(self._topic, self._partition, offset)])
        heard = time.monotonic()
        try:
            while time.monotonic() < heard + TIMEOUT_SECONDS and not self._stopped:
                first = consumer.poll(POLL_SECONDS)
                for message in [first, *consumer.consume(READ_AT_ONCE, 0)] if first is not None else []:
                    if self._is_end(message):
                        return
                    if message.error() is None:
                        heard = time.monotonic()
                        yield message
        finally:
            with calling(f"ending a read of {self._topic}/{self._partition}"):
                consumer.unassign()
            self._read_at = time.monotonic()
        raise KafkaUnreachable(f"the end of {self._topic}/{self._partition} was not seen")

    def read_at(self, offsets: Sequence[int]) -> Iterator[Message]:
        """Yield the records at ascending offsets; those that are not there are left out."""
        index = 0
        while index < len(offsets):
            for message in self.read_on(offsets[index]):
                while index < len(offsets) and offsets[index] < (message.offset() or 0):
                    index += 1  # it is not there
                if index < len(offsets) and offsets[index] == message.offset():
                    index += 1
                    yield message
                if index == len(offsets) or offsets[index] > (message.offset() or 0) + NEAR:
                    break
            else:
                return

    def bounds(self) -> tuple[int, int]:
        """Return the first offset of the partition, and the one behind its last."""
        place = TopicPartition(self._topic, self._partition)
        try:
            return self._connected().get_watermark_offsets(place, TIMEOUT_SECONDS)
        except KafkaException as error:
            raise KafkaUnreachable(f"the ends of {self._topic}/{self._partition}: {error.args[0].str()}") from error

    def stop(self) -> None:
        """Let reads, also later ones, fail at once."""
        self._stopped = True

    def rest(self) -> None:
        """Let the connection go if there was no read for `REST_SECONDS`."""
        if time.monotonic() - self._read_at > REST_SECONDS:
            self.close()

    def close(self) -> None:
        if self._consumer is not None:
            with calling(f"closing a reader of {self._topic}/{self._partition}"):
                self._consumer.close()
            self._consumer = None

    def _is_end(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return False
        if error.fatal():
            raise KafkaException(error)
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise ConfigurationError(f"the right READ on topic {self._topic} is missing: grant it")
        return error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - librdkafka's own codes carry an underscore


LOOK_SECONDS = 5.0

Offsets = Mapping[str, tuple[int, ...]]
"""An offset for each partition of some topics."""


class StableOffsets:
    """What was seen of real topics. Pure."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], tuple[int, float]] = {}

    def saw(self, ends: Offsets, stable: Offsets, now: float) -> dict[str, float]:
        """Return for how many seconds a transaction has kept readers of each topic back; `stable` was asked last."""
        since = self._since
        self._since = {}
        found = defaultdict[str, float](float)
        for topic in stable.keys() & ends.keys():
            for number, (end, offset) in enumerate(zip(ends[topic], stable[topic], strict=True)):
                before, at = since.get((topic, number), (offset, now))
                at = at if before == offset and end > offset else now
                self._since[topic, number] = (offset, at)
                found[topic] = max(found[topic], now - at)
        return dict(found)


def watch_real_topics(admin: AdminClient, topics: TopicCache) -> Periodic:
    """Return what describes the topics of this relay again and again, for pre-flight and for metrics; not started yet.

    Pre-flight must not learn of missing replicas too late: a Kafka transaction that has written to a topic below
    `min.insync.replicas` cannot be ended until its replicas are back, and with it the half partition waits.
    """
    offsets = StableOffsets()

    def look() -> None:
        describe(topics)
        partitions = topics.described()
        ends = end_offsets(admin, partitions)
        found = offsets.saw(ends, end_offsets(admin, partitions, stable=True), time.monotonic())
        metrics.BLOCKED_SECONDS.show_only({topic: seconds for topic, seconds in found.items() if seconds})

    return Periodic("real topics", look, LOOK_SECONDS)


def describe(topics: TopicCache) -> None:
    """Describe the real topics again, and export how many of their partitions are below `min.insync.replicas`."""
    found = topics.describe_again(topics.described())
    short = {name: topic.under_min_isr for name, topic in found.items() if topic and topic.under_min_isr}
    metrics.UNDER_MIN_ISR.show_only(short)
