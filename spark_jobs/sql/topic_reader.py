"""Reads spans of a channel's internal topics, as far as they are committed, into batches for Spark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from outbox._kafka.admin import admin_client, describe_topics
from outbox._kafka.group_offsets import committed_checkpoints
from outbox._kafka.range_reader import Span, SpanReader
from outbox.errors import ConfigurationError
from outbox.protocol.checkpoint import CheckpointError, parse_half_checkpoint
from outbox.protocol.errors import NewerFormatError
from spark_jobs.runtime.errors import SourceError
from spark_jobs.sql.decoding import Fields, Stored, columns_of, decode
from spark_jobs.sql.options import Options
from spark_jobs.sql.pushdown import Bounds
from spark_jobs.sql.schema import OutboxTable

ROWS_AT_ONCE = 2_000

_ENDS_WHERE_RECORDS_ARE_GONE = {"auto.offset.reset": "error"}
_NO_OFFSET = "_AUTO_OFFSET_RESET"  # librdkafka's name of the error


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What one task reads.

    Args:
        span: Offsets of a partition.
        unsettled: The offsets that count, as runs that ascend; None: all.
        doubt: Why it is not known which are unsettled; empty if it is.
    """

    span: Span
    unsettled: tuple[range, ...] | None = None
    doubt: str = ""

    def has(self, offset: int) -> bool:
        """Whether a record counts."""
        if self.unsettled is None:
            return True
        before = bisect_right(self.unsettled, offset, key=lambda run: run.start)
        return before > 0 and offset in self.unsettled[before - 1]


class ChannelReader:
    """Reads one of the topics of a channel.

    Args:
        options: Which, and how.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

    @property
    def _looking(self) -> tuple[AdminClient, SpanReader]:
        return _clients(tuple(sorted(self._options.kafka.items())), self._options.channel.relay_group)

    def topic_id(self) -> str:
        """Return the id of the topic.

        Raises:
            SourceError: It does not exist.
            ConfigurationError: Kafka does not answer, or refuses.
        """
        found = describe_topics(self._looking[0], [self._options.topic])
        if not found:
            raise SourceError(f"Topic {self._options.topic} does not exist. Correct the channel, or create it.")
        return found[self._options.topic].id

    def spans(self) -> list[Span]:
        """All that the topic has at this moment, as far as it is committed.

        Raises:
            SourceError: It does not exist.
            ConfigurationError: Kafka does not answer, or refuses.
        """
        topic, reader = self._options.topic, self._looking[1]
        found = [reader.whole(topic, number) for number in reader.partitions(topic)]
        if not found:
            raise SourceError(f"Topic {topic} does not exist. Correct the channel, or create it.")
        return found

    def shares(self, bounds: Bounds) -> list[ReadTask]:
        """Return what must be read for a query.

        Raises:
            ConfigurationError: Kafka does not answer, refuses, or does not have what is wanted.
        """
        spans = [span for span in self.spans() if bounds.wants_partition(span.partition)]
        shares = (
            self._pending(spans) if self._options.what is OutboxTable.PENDING else [ReadTask(span) for span in spans]
        )
        narrow = self._narrowed(bounds, shares)
        return [share for share in narrow if share.span]

    def _pending(self, spans: list[Span]) -> list[ReadTask]:
        """Return the halves that the relay's checkpoint does not call settled."""
        topic, group, topic_id = self._options.topic, self._options.channel.relay_group, self.topic_id()
        places = [(span.topic, span.partition) for span in spans]
        # What was settled once stays settled: what is read here may be pending no more when it is looked at.
        committed = committed_checkpoints(self._options.kafka, group, places, stable=False)
        shares = []
        for span in spans:
            found = committed.get((topic, span.partition))
            if found is None:
                raise SourceError(
                    f"Group {group} has no checkpoint of {topic}/{span.partition}, so it is unknown what is pending. "
                    "Check that the relay runs."
                )
            rest = replace(span, start=max(span.start, found.offset))
            try:
                checkpoint = parse_half_checkpoint(found.metadata or "", found.offset, topic_id, found.partition)
            except (CheckpointError, NewerFormatError) as error:
                shares.append(
                    ReadTask(rest, None, f"the relay's checkpoint cannot be trusted, it may be settled: {error}")
                )
            else:
                unread = range(checkpoint.head, max(span.stop, checkpoint.head))
                shares.append(ReadTask(rest, (*checkpoint.unsettled, unread)))
        return shares

    def _narrowed(self, bounds: Bounds, shares: list[ReadTask]) -> list[ReadTask]:
        # The discard topic is read to its end: a later record decides whether a record is alive.
        open_end = self._options.what is OutboxTable.DISCARDS
        starts, stops = self._times(bounds, [share.span for share in shares])
        found = []
        for share in shares:
            span = share.span
            start = max(span.start, bounds.first, starts.get(span.partition, 0))
            stop = span.stop
            if not open_end:
                stop = min(stop, stops.get(span.partition, stop))
                stop = stop if bounds.last is None else min(stop, bounds.last + 1)
            found.append(replace(share, span=replace(span, start=start, stop=stop)))
        return found

    def _times(self, bounds: Bounds, spans: list[Span]) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Return the first offset that a time bound lets through, and the one behind the last, by partition."""
        numbers = [span.partition for span in spans]
        starts: dict[int, int] = {}
        stops: dict[int, int] = {}
        topic, reader = self._options.topic, self._looking[1]
        if bounds.since is not None:
            starts = {span.partition: span.start for span in reader.since(topic, numbers, bounds.since)}
        if bounds.until is not None:
            # Another broker's clock may be behind: what comes later can have an earlier time.
            behind = bounds.until + self._options.clock_skew + 1
            stops = {span.partition: span.start for span in reader.since(topic, numbers, behind)}
        return starts, stops

    def batches(self, share: ReadTask, schema: StructType, bounds: Bounds, *, whole: bool) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share, as Arrow batches.

        Args:
            share: What to read.
            schema: The columns.
            bounds: What can be wanted.
            whole: Whether the share goes to the end of the topic, so that it is known which discards are alive. If it
                does not, all of it must be read: a stream never comes back to what it passed over.

        Raises:
            SourceError: Records are gone that had to be read.
            ConfigurationError: Kafka does not answer, or refuses.
        """
        arrow = to_arrow_schema(schema, timezone="UTC")
        kafka = self._options.kafka if whole else {**self._options.kafka, **_ENDS_WHERE_RECORDS_ARE_GONE}
        with SpanReader(kafka, self._options.channel.relay_group) as reader, _told(share.span):
            records = (record for record in map(stored, reader.read([share.span])) if share.has(record.offset))
            rows = self._alive(records) if whole and self._options.what is OutboxTable.DISCARDS else self._rows(records)
            wanted = (row for row in rows if bounds.wants(row.get("transaction_id")))
            for part in _parts(_doubted(wanted, share.doubt)):
                columns = columns_of(self._options.what, part)
                arrays = [pa.array(columns[field.name], field.type) for field in arrow]
                yield pa.RecordBatch.from_arrays(arrays, schema=arrow)

    def _rows(self, records: Iterable[Stored]) -> Iterator[Fields]:
        for record in records:
            yield from decode(self._options.what, record)

    def _alive(self, records: Iterable[Stored]) -> Iterator[Fields]:
        """Rows with a flag whether each is the last one with its key."""
        kept = list(records)
        last = {record.key: record.offset for record in kept}
        for record in kept:
            alive = last[record.key] == record.offset and record.value is not None
            for row in decode(self._options.what, record):
                yield {**row, "alive": alive}


@lru_cache(maxsize=4)
def _clients(kafka: tuple[tuple[str, str], ...], group: str) -> tuple[AdminClient, SpanReader]:
    """Return what a stream looks with at every trigger, made once in its process.

    The reader has the name of the relay's group, which every reader of the channel may use.
    """
    return admin_client(dict(kafka)), SpanReader(dict(kafka), group)


@contextmanager
def _told(span: Span) -> Iterator[None]:
    """Turn librdkafka's errors about offsets that are gone into errors about lost records."""
    try:
        yield
    except ConfigurationError as error:
        if _NO_OFFSET not in str(error):
            raise
        raise SourceError(f"{_wanted(span)}: records are gone. Begin with another checkpoint.") from error


def stored(message: Message) -> Stored:
    """Return a record of confluent-kafka."""
    headers, problem = _headers(message.headers)
    place = message.partition() or 0, message.offset() or 0
    return Stored(*place, message.timestamp()[1], message.key(), message.value(), headers, problem)


def _headers(read: Callable[[], Any]) -> tuple[tuple[tuple[str, bytes | None], ...], str]:
    try:
        return tuple(read() or ()), ""
    except UnicodeDecodeError:
        return (), "a header's name is not UTF-8"


def _doubted(rows: Iterable[Fields], doubt: str) -> Iterator[Fields]:
    for row in rows:
        yield {**row, "problem": row.get("problem") or doubt} if doubt else row


def _parts(rows: Iterable[Fields]) -> Iterator[list[Fields]]:
    part: list[Fields] = []
    for row in rows:
        part.append(row)
        if len(part) == ROWS_AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def missing(wanted: Iterable[Span], there: Iterable[Span]) -> ConfigurationError | None:
    """Return what a stream was to read and Kafka does not have any more, or does not have yet; None: nothing."""
    begins = {span.partition: span for span in there}
    for span in wanted:
        found = begins.get(span.partition)
        if found is None or span.start < found.start or span.stop > found.stop:
            has = "nothing" if found is None else f"{found.start}..{found.stop - 1}"
            return SourceError(f"{_wanted(span)}, and Kafka has {has}: records are gone; begin with another checkpoint")
    return None


def _wanted(span: Span) -> str:
    return f"{span.topic}/{span.partition} was to be read from {span.start} to {span.stop - 1}"
