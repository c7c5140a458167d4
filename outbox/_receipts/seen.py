"""A bounded memory of the records that a consumer has read, and its positions.

One consumer serves all waiting receipts. Each receipt needs its partitions from a start offset on. If everything from
there on was read and is remembered, the consumer continues; otherwise it seeks back to the start offset.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from outbox.protocol.names import Place

T = TypeVar("T")


@dataclass(slots=True)
class _Span:
    """The range of a partition that was read: all sightings from `start` to before `position` are remembered."""

    start: int
    position: int
    at_end: bool = False
    untouched: bool = True  # whether nothing was read since the last seek
    rested: bool = False  # whether the end was reached since the last seek


class Sightings(Generic[T]):
    """A bounded memory of sightings, and the consumer's positions.

    Args:
        limit: Maximum number of sightings; the oldest is dropped first.
    """

    def __init__(self, limit: int) -> None:
        self.seeks = 0
        """Incremented whenever the consumer must seek."""
        self._limit = limit
        self._found: OrderedDict[bytes, tuple[Place, int, T]] = OrderedDict()
        self._spans: dict[Place, _Span] = {}

    def __len__(self) -> int:
        """Return the number of sightings."""
        return len(self._found)

    def need(self, place: Place, start: int) -> bool:
        """Request all records of a partition from an offset on.

        After a seek the consumer seeks back again only when it has reached the end, so that receipts that already wait
        are served first.

        Returns:
            Whether the records are remembered or will be read; if not, call again later.
        """
        span = self._spans.get(place)
        if span is not None and span.start <= start:
            return True
        if span is not None and not span.untouched and not span.rested:
            return False
        self._spans[place] = _Span(start, start)
        self.seeks += 1
        return True

    def reads(self, place: Place) -> bool:
        """Return whether a partition is read."""
        return place in self._spans

    def positions(self) -> dict[Place, int]:
        """Return the next offset of each partition that is read."""
        return {place: span.position for place, span in self._spans.items()}

    def at_end(self, place: Place) -> bool:
        """Return whether the consumer has reached the end of a partition."""
        return place in self._spans and self._spans[place].at_end

    def passed(self, place: Place, offset: int) -> None:
        """Advance the position past the record at an offset."""
        span = self._spans.get(place)
        if span is not None:
            _put(span, offset)
            span.position = offset + 1
            span.at_end = span.untouched = False

    def reached_end(self, place: Place, offset: int) -> None:
        """Note that a partition has no readable record at an offset yet."""
        span = self._spans.get(place)
        if span is not None:
            _put(span, offset)
            span.at_end = span.rested = True

    def remember(self, key: bytes, place: Place, offset: int, sighting: T) -> None:
        """Store the sighting in the record at an offset; it replaces an earlier one with the same key."""
        before = self._found.pop(key, None)
        if before is not None and before[:2] != (place, offset):
            self._lost(*before[:2])
        self._found[key] = place, offset, sighting
        if len(self._found) > self._limit:
            _, (lost, at, _) = self._found.popitem(last=False)
            self._lost(lost, at)

    def _lost(self, place: Place, offset: int) -> None:
        """Shrink the remembered range past a dropped record, unless the consumer will read the record again."""
        span = self._spans.get(place)
        if span is not None and offset < span.position:
            span.start = max(span.start, offset + 1)

    def get(self, key: bytes) -> T | None:
        """Return the sighting of a key; None if it is not remembered."""
        found = self._found.get(key)
        return None if found is None else found[2]

    def remove(self, key: bytes) -> None:
        """Remove the sighting of a key: it is no longer valid."""
        self._found.pop(key, None)

    def drop_topic(self, topic: str) -> None:
        """Stop reading a topic, and remove its sightings, which later records could invalidate."""
        self._spans = {place: span for place, span in self._spans.items() if place[0] != topic}
        for key in [key for key, (place, _, _) in self._found.items() if place[0] == topic]:
            del self._found[key]
        self.seeks += 1


def _put(span: _Span, offset: int) -> None:
    """Set the position. A lower offset than before means that the topic was recreated, or was read past its end."""
    if offset < span.position:
        span.start = offset
    span.position = offset
