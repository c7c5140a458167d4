"""Reads spans of topics for a search: as much as is allowed, and notes what was read, and what was not."""

from collections.abc import Callable, Sequence
from contextlib import closing

from confluent_kafka import Message

from outbox._kafka.range_reader import Span, SpanReader, cut_spans
from outbox.operator.state.coverage import Coverage, Searched
from outbox.protocol.errors import ProtocolError


class Walk:
    """One search through topics.

    Args:
        most: Records that are read of a topic at most.
        narrower: What helps where there are more.
        passed: Called with the number of records that were read, from time to time.
    """

    def __init__(
        self, reader: SpanReader, coverage: Coverage, most: int, narrower: str, passed: Callable[[int], None]
    ) -> None:
        self.reader = reader
        self._coverage = coverage
        self._most = most
        self._narrower = narrower
        self._passed = passed

    def read(
        self,
        spans: Sequence[Span],
        take: Callable[[Message], None],
        wants: Callable[[Message], bool] = lambda _: True,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Give the records that are wanted to `take`, until there is enough; one that cannot be parsed is a gap."""
        allowed = cut_spans(spans, self._most)
        reached = {(span.topic, span.partition): span.start for span in allowed}
        broken_off = False
        with closing(self.reader.read(allowed, self._passed)) as records:
            for message in records:
                reached[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1
                if wants(message):
                    self._try(take, message)
                    if enough():
                        broken_off = True
                        break
        for span, part in zip(spans, allowed, strict=True):
            stop = reached[span.topic, span.partition] if broken_off else part.stop
            self._coverage.searched.append(Searched(span.topic, span.partition, span.start, stop, span.stop))
            if part.stop < span.stop and not broken_off:
                left = f"{span.topic}/{span.partition}, offsets {part.stop} to {span.stop}"
                self._coverage.miss(left, f"more than {self._most} records: {self._narrower}", span.topic)

    def _try(self, take: Callable[[Message], None], message: Message) -> None:
        try:
            take(message)
        except ProtocolError as error:
            self._coverage.miss(place_of(message), str(error), is_fault=True)


def place_of(message: Message) -> str:
    return f"{message.topic()}/{message.partition()} offset {message.offset()}"
