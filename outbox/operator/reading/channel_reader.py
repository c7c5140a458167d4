"""Reads what a channel holds unsettled: committed checkpoints first, then the halves that they name, then the rest."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from confluent_kafka import Message, TopicPartition

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.groups import committed_checkpoints
from outbox._kafka.range_reader import Span, SpanReader
from outbox._service.exit_codes import UnsafeError
from outbox.operator.reading.discards import read_manifests
from outbox.operator.reading.topic_walk import RECORDS, place_of
from outbox.operator.state.coverage import Gap
from outbox.operator.state.unsettled_transactions import Gathering, Half
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint, parse_half_checkpoint, parse_op_checkpoint
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import parse_half
from outbox.protocol.names import Place
from outbox.protocol.op import MisplacedOpError, OpEntry, OpSource, parse_op

NEAR = 2_000  # settled halves that are rather read through than skipped
SKEW_MS = 60_000  # assumed clock skew between two brokers: ops are read from this long before their half


class RelayProgress(NamedTuple):
    """How far a relay has come in a half, an op and a verdict partition."""

    half: HalfCheckpoint
    op: OpCheckpoint
    verdict: OpCheckpoint


Progress = Mapping[int, RelayProgress]
Committed = Mapping[Place, TopicPartition]


def read_progress(
    kafka: Mapping[str, str], channel: ChannelDescription, numbers: Sequence[int]
) -> tuple[Progress, Sequence[Gap]]:
    """Return checkpoints by partition, and the partitions without one that can be trusted; no group is joined."""
    places = [(topic.name, number) for topic in (channel.half, channel.op, channel.verdict) for number in numbers]
    committed = committed_checkpoints(kafka, channel.channel.relay_group, places)
    progress, unread = dict[int, RelayProgress](), list[Gap]()
    for number in numbers:
        try:
            progress[number] = _progress(channel, number, committed)
        except (UnsafeError, ProtocolError) as error:
            unread.append(Gap(f"{channel.half.name}/{number}", str(error), partition=number, is_fault=True))
    return progress, unread


def _progress(channel: ChannelDescription, number: int, committed: Committed) -> RelayProgress:
    half, op, names = channel.half, channel.op, channel.channel
    if missing := [f"{topic.name}/{number}" for topic in (half, op) if (topic.name, number) not in committed]:
        raise UnsafeError(
            f"{' and '.join(missing)} has no checkpoint in group {names.relay_group}, so that it is not known what is "
            f"settled there: for a new channel run `outbox channel create --channel {names.name}`"
        )
    ours, theirs = committed[half.name, number], committed[op.name, number]
    verdicts = committed.get((channel.verdict.name, number))  # missing until a relay has committed one
    return RelayProgress(
        parse_half_checkpoint(ours.metadata or "", ours.offset, half.id, number),
        parse_op_checkpoint(theirs.metadata or "", theirs.offset, op.id, number),
        OpCheckpoint(0, 0)
        if verdicts is None
        else parse_op_checkpoint(verdicts.metadata or "", verdicts.offset, channel.verdict.id, number),
    )


@dataclass
class ChannelReader:
    """Gathers what is unsettled, from at most `most` op records of a partition."""

    kafka: Mapping[str, str]
    channel: ChannelDescription
    gathering: Gathering
    most: int = RECORDS
    unread: list[Gap] = field(default_factory=list)

    def gather(self, *only: int) -> list[Gap]:
        """Read it, of all half partitions or only some; return what was not, because it was too much, or damaged."""
        numbers = only or self.channel.numbers()
        progress, unread = read_progress(self.kafka, self.channel, numbers)
        if unread and not progress and not only:
            raise UnsafeError(f"{unread[0].place} cannot be read: {unread[0].why}")
        self.unread += unread
        with SpanReader(self.kafka, self.channel.channel.relay_group) as reader:
            for number, found in progress.items():
                self._read_halves(reader, number, found.half)
            for manifest in read_manifests(self.kafka, self.channel, self._cannot_read, numbers):
                self.gathering.add_manifest(manifest)
            if self.gathering.sums:
                self._read_ops(reader, progress)
        return self.unread

    def _read_halves(self, reader: SpanReader, number: int, checkpoint: HalfCheckpoint) -> None:
        whole = reader.whole(self.channel.half.name, number)
        if whole.start > checkpoint.offset:
            self._miss(number, checkpoint.offset, whole.start, "retention or an operator removed them")
        if whole.stop < checkpoint.head:
            self._miss(number, whole.stop, checkpoint.head, "Kafka has lost records that it had acknowledged")
        for span, is_unsettled in unsettled_spans(whole, checkpoint):
            for message in reader.read([span]):
                offset = message.offset() or 0
                if self.gathering.is_full(number):
                    place = f"{whole.topic}/{number}, offsets {offset} to {whole.stop}"
                    self.unread.append(Gap(place, "more halves are unsettled than are looked at", partition=number))
                    return
                if is_unsettled(offset):
                    self._take_half(message)

    def _miss(self, number: int, start: int, stop: int, why: str) -> None:
        place = f"{self.channel.half.name}/{number}, offsets {start} to {stop}"
        self.unread.append(Gap(place, why, partition=number, is_fault=True))

    def _cannot_read(self, message: Message, error: ProtocolError) -> None:
        self.unread.append(Gap(place_of(message), str(error), partition=message.partition(), is_fault=True))

    def _take_half(self, message: Message) -> None:
        try:
            if half := to_half(message):
                self.gathering.add_half(half)
            else:
                self.gathering.malformed += 1
        except NewerFormatError as error:
            self._cannot_read(message, error)

    def _read_ops(self, reader: SpanReader, progress: Progress) -> None:
        verdict_topic = self.channel.verdict.name
        spans = [
            self._cut(span, needed.offset)
            for number, since in self.gathering.since().items()
            if number in progress
            for topic, needed in zip((self.channel.op.name, verdict_topic), progress[number][1:], strict=True)
            for span in reader.since(topic, [number], since - SKEW_MS)
        ]
        for message in reader.read(spans):
            place = (message.offset() or 0, message.timestamp()[1])
            try:
                for source, entry in to_ops(message, verdict=message.topic() == verdict_topic):
                    self.gathering.add_op(entry, source, *place, self.channel.half.id)
            except NewerFormatError as error:
                self._cannot_read(message, error)
            except MisplacedOpError:
                continue  # the relay counts it (R65)

    def _cut(self, span: Span, needed: int) -> Span:
        """So much of a span of ops or verdicts that it is not too much, from the relay's position at the latest."""
        start = min(span.start, needed)
        if span.stop - start > self.most:
            start = max(min(needed, span.stop), span.stop - self.most)
            place = f"{span.topic}/{span.partition}, offsets {span.start} to {start}"
            self.unread.append(Gap(place, f"more than the last {self.most} records", partition=span.partition))
        return Span(span.topic, span.partition, start, span.stop)


def unsettled_spans(whole: Span, checkpoint: HalfCheckpoint) -> Iterator[tuple[Span, Callable[[int], bool]]]:
    """Yield offset ranges of a half partition, each with a predicate that is true for unsettled offsets."""
    runs = list(checkpoint.unsettled)
    while runs:
        near = [runs.pop(0)]
        while runs and runs[0].start - near[-1].stop <= NEAR:
            near.append(runs.pop(0))
        yield Span(whole.topic, whole.partition, near[0].start, near[-1].stop), partial(_is_within, near)
    yield Span(whole.topic, whole.partition, checkpoint.head, whole.stop), lambda _: True


def _is_within(runs: Sequence[range], offset: int) -> bool:
    return offset in runs[bisect_right(runs, offset, key=attrgetter("start")) - 1]  # none of them is before the first


def to_half(message: Message) -> Half | None:
    """Parse a record of the half topic; return None if it is malformed (a relay discards it as MALFORMED)."""
    try:
        control = parse_half(headers_of(message))
    except NewerFormatError:
        raise
    except ProtocolError:
        return None
    return Half(message.partition() or 0, message.offset() or 0, message.timestamp()[1], control)


def to_ops(message: Message, *, verdict: bool) -> Iterable[tuple[OpSource, OpEntry]]:
    """Return the entries of an op record that a relay applies; none if it is malformed: a relay skips it."""
    try:
        source, entries = parse_op(message.value(), headers_of(message), verdict=verdict)
    except (NewerFormatError, MisplacedOpError):
        raise
    except ProtocolError:
        return []
    return [(source, entry) for entry in entries]
