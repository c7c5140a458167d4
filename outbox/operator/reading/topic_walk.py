"""Reads spans of topics for a search: as much as is allowed, and notes what was read, and what was not."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import Message

from outbox._kafka.range_reader import Span, SpanReader, cut_spans
from outbox.operator.state.coverage import Coverage, Searched
from outbox.protocol.errors import ProtocolError

RECORDS = 1_000_000  # records that are read of a topic at most


@dataclass
class Walk:
    """One search through topics, of `most` records each; `narrower` is what helps where there are more."""

    reader: SpanReader
    coverage: Coverage
    most: int = RECORDS
    narrower: str = "narrow it with --since"

    def partitions(self, topic: str) -> range:
        there = self.reader.partitions(topic)
        if not there:
            self.coverage.miss(topic, "the topic does not exist, or may not be described", is_fault=True)
        return there

    def read(
        self,
        spans: Sequence[Span],
        take: Callable[[Message], None],
        wants: Callable[[Message], bool] = lambda _: True,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Give the records that are wanted to `take`, until there is enough; one that cannot be parsed is a gap."""
        allowed = cut_spans(spans, self.most)
        reached = {(span.topic, span.partition): span.start for span in allowed}
        broken_off = False
        with closing(self.reader.read(allowed)) as records:
            for message in records:
                reached[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
                if wants(message):
                    try:
                        take(message)
                    except ProtocolError as error:
                        self.coverage.miss(place_of(message), str(error), is_fault=True)
                    if enough():
                        broken_off = True
                        break
        for span, part in zip(spans, allowed, strict=True):
            stop = reached[span.topic, span.partition] if broken_off else part.stop
            self.coverage.searched.append(Searched(span.topic, span.partition, span.start, stop, span.stop))
            if part.stop < span.stop and not broken_off:
                left = f"{span.topic}/{span.partition}, offsets {part.stop} to {span.stop}"
                self.coverage.miss(left, f"more than {self.most} records: {self.narrower}", span.topic)


def place_of(message: Message) -> str:
    return f"{message.topic()}/{message.partition()} offset {message.offset()}"
