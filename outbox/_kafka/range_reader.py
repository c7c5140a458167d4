"""Read bounded offset ranges with manual assignment, without joining the group."""

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import zip_longest
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox._kafka.admin import REQUEST_TIMEOUT, checked_properties, refused
from outbox._kafka.client_log import logged
from outbox.errors import KafkaUnreachable
from outbox.protocol.names import Place

_READ_AT_ONCE = 1_000
_POLL_SECONDS = 0.2
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_EXCEPTION}  # noqa: SLF001

_MOVES = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
_MOVE_SECONDS = 0.2
"""Pause before a partition is asked again whose leader changes, as in a rolling restart."""

RECORDS_READ: ContextVar[Callable[[int], None]] = ContextVar("records read", default=lambda _: None)
"""Is called with numbers of records that readers have read, from time to time: a command shows them on a terminal."""


@dataclass(frozen=True, slots=True)
class Span:
    """Some offsets of a partition, up to before `stop`."""

    topic: str
    partition: int
    start: int
    stop: int

    def __len__(self) -> int:
        return max(self.stop - self.start, 0)


class SpanReader:
    """A consumer that is given its partitions by hand: it joins no generation, commits nothing, and leaves no trace.

    Args:
        group: A client that may read for this group may read here.
        isolation: `isolation.level`; an open Kafka transaction ends what a `read_committed` reader can see.
    """

    def __init__(self, kafka: Mapping[str, str], group: str, isolation: str = "read_committed") -> None:
        with checked_properties():
            self._consumer = Consumer(
                {
                    "auto.offset.reset": "earliest",  # compaction and retention may have removed the first records
                    "fetch.queue.backoff.ms": 5,
                    "fetch.wait.max.ms": 50,
                    "queued.max.messages.kbytes": 8_192,  # of each partition; by default 64 MB
                    **logged(kafka),
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "group.id": group,
                    "isolation.level": isolation,
                }
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._consumer.close()

    def partitions(self, topic: str) -> range:
        """Return the partitions of a topic; none if it does not exist."""
        try:
            found = self._consumer.list_topics(topic, REQUEST_TIMEOUT).topics.get(topic)
        except KafkaException as error:
            raise refused(f"asking for the partitions of {topic}", error) from error
        if found is None or (found.error is not None and found.error.code() in _NO_TOPIC):
            return range(0)
        if found.error is not None:
            raise refused(f"asking for the partitions of {topic}", KafkaException(found.error))
        return range(len(found.partitions))

    def whole(self, topic: str, partition: int) -> Span:
        """All that a partition has at this moment, as far as this reader can see it."""
        place, until = TopicPartition(topic, partition), time.monotonic() + REQUEST_TIMEOUT
        while True:
            try:
                return Span(topic, partition, *self._consumer.get_watermark_offsets(place, REQUEST_TIMEOUT))
            except KafkaException as error:
                if error.args[0].code() not in _MOVES or time.monotonic() > until:
                    raise refused(f"asking for the ends of {topic}/{partition}", error) from error
                time.sleep(_MOVE_SECONDS)

    def since(self, topic: str, partitions: Iterable[int], ms: int) -> list[Span]:
        """Return the spans from a time on, in ms by the clock that stamps the records; empty where nothing is newer."""
        asked = [TopicPartition(topic, partition, max(ms, 0)) for partition in partitions]
        try:
            answers = self._consumer.offsets_for_times(asked, REQUEST_TIMEOUT) if asked else []
        except KafkaException as error:
            raise refused(f"looking into the time index of {topic}", error) from error
        spans = []
        for answer in answers:
            if answer.error is not None:
                raise refused(f"looking into the time index of {topic}", KafkaException(answer.error))
            whole = self.whole(topic, answer.partition)
            spans.append(Span(topic, answer.partition, answer.offset if answer.offset >= 0 else whole.stop, whole.stop))
        return spans

    def read(self, spans: Iterable[Span]) -> Generator[Message, None, None]:
        """Read the records of spans, partitions interleaved; those of one partition ascend, and do not overlap."""
        by_place: dict[Place, list[Span]] = defaultdict(list)
        for span in spans:
            if span:
                by_place[span.topic, span.partition].append(span)
        for turn in zip_longest(*by_place.values()):
            yield from self._read_beside([span for span in turn if span is not None])

    def _read_beside(self, spans: list[Span]) -> Iterator[Message]:
        """Yield the records of one span of each of some partitions."""
        unread = {(span.topic, span.partition): span for span in spans}
        places = [TopicPartition(span.topic, span.partition, span.start) for span in spans]
        self._consumer.assign(places)
        self._consumer.resume(places)  # one that was paused at the end of an earlier span still is
        at_once = min(_READ_AT_ONCE, sum(map(len, spans)))  # `consume` waits until it has as many as it is asked for
        heard = time.monotonic()
        try:
            while unread:
                messages = self._consumer.consume(at_once, _POLL_SECONDS)
                if messages:
                    heard = time.monotonic()
                elif time.monotonic() > heard + REQUEST_TIMEOUT:
                    raise KafkaUnreachable(f"Kafka does not answer: the end of {_names(unread)} was not seen")
                for message in messages:
                    yield from self._take(message, unread)
                RECORDS_READ.get()(len(messages))
        finally:
            self._consumer.unassign()

    def _take(self, message: Message, unread: dict[Place, Span]) -> Iterator[Message]:
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        error, span = message.error(), unread.get(place)
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes
            if error.fatal() or not error.retriable():
                raise refused(f"reading {place[0]}", KafkaException(error))
        elif span is not None:
            if error is None and offset < span.stop:
                yield message
            if error is not None or offset + 1 >= span.stop:
                del unread[place]
                self._consumer.pause([TopicPartition(*place)])


def cut_spans(spans: Sequence[Span], most: int) -> list[Span]:
    """Cut spans from their ends until they have at most so many offsets together; short ones stay whole."""
    kept: dict[Span, int] = {}
    for index, span in enumerate(sorted(spans, key=len)):
        kept[span] = min(len(span), most // (len(spans) - index))
        most -= kept[span]
    return [Span(span.topic, span.partition, span.start, span.start + kept[span]) for span in spans]


def _names(unread: Iterable[Place]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in unread)
