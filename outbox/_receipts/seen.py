"""What a reader of topics has seen, and how far back its memory reaches. Pure: no I/O, no clock.

One reader serves all who wait for a message. Somebody who comes names the offset from which on the message can lie. Was
all from there on read and remembered, then the reader just goes on; if not, it goes back.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

Place = tuple[str, int]
"""A topic and a number of a partition."""


@dataclass(slots=True)
class _Span:
    """How far a partition was read: all sightings from `start` to before `position` are remembered."""

    start: int
    position: int
    at_end: bool = False
    untouched: bool = True  # whether nothing was read since the reader went there
    rested: bool = False  # whether the end was seen since then


class Sightings(Generic[T]):
    """A bounded memory of sightings, and the positions of the reader.

    Args:
        limit: How many sightings are remembered; the oldest is forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self.moves = 0
        """Rises whenever the reader must be sent to other positions than those to which it comes by reading on."""
        self._limit = limit
        self._found: OrderedDict[bytes, tuple[Place, int, T]] = OrderedDict()
        self._spans: dict[Place, _Span] = {}

    def __len__(self) -> int:
        """How many sightings are remembered."""
        return len(self._found)

    def need(self, place: Place, start: int) -> bool:
        """Somebody needs all that lies in a partition at or behind an offset.

        Once it has begun to read, the reader goes back only after it saw the end: whoever already waits gets his turn.

        Returns:
            Whether it is remembered, or will be read; otherwise ask again later.
        """
        span = self._spans.get(place)
        if span is not None and span.start <= start:
            return True
        if span is not None and not span.untouched and not span.rested:
            return False
        self._spans[place] = _Span(start, start)
        self.moves += 1
        return True

    def reads(self, place: Place) -> bool:
        """Whether the reader reads a partition."""
        return place in self._spans

    def positions(self) -> dict[Place, int]:
        """The next offset of each partition that is read."""
        return {place: span.position for place, span in self._spans.items()}

    def at_end(self, place: Place) -> bool:
        """Whether the reader stands at the end of a partition, as far as it knows."""
        return place in self._spans and self._spans[place].at_end

    def passed(self, place: Place, offset: int) -> None:
        """The reader was given the record at an offset."""
        span = self._spans.get(place)
        if span is not None:
            _put(span, offset)
            span.position = offset + 1
            span.at_end = span.untouched = False

    def ended(self, place: Place, offset: int) -> None:
        """The reader saw the end of a partition; nothing is readable at this offset yet."""
        span = self._spans.get(place)
        if span is not None:
            _put(span, offset)
            span.at_end = span.rested = True

    def remember(self, key: bytes, place: Place, offset: int, sighting: T) -> None:
        """Remember what was seen in the record at an offset, in the place of what was seen under this key before."""
        before = self._found.pop(key, None)
        if before is not None and before[:2] != (place, offset):
            self._lost(*before[:2])
        self._found[key] = place, offset, sighting
        if len(self._found) > self._limit:
            _, (lost, at, _) = self._found.popitem(last=False)
            self._lost(lost, at)

    def _lost(self, place: Place, offset: int) -> None:
        """What lies ahead of the reader, because it went back, it will see again."""
        span = self._spans.get(place)
        if span is not None and offset < span.position:
            span.start = max(span.start, offset + 1)

    def get(self, key: bytes) -> T | None:
        """What was seen under a key, if it is remembered."""
        found = self._found.get(key)
        return None if found is None else found[2]

    def forget(self, key: bytes) -> None:
        """What was seen under a key holds no longer."""
        self._found.pop(key, None)

    def let_go(self, topic: str) -> None:
        """A topic is read no more. What was seen there is forgotten: what follows on it will not be seen."""
        self._spans = {place: span for place, span in self._spans.items() if place[0] != topic}
        for key in [key for key, (place, _, _) in self._found.items() if place[0] == topic]:
            del self._found[key]
        self.moves += 1


def _put(span: _Span, offset: int) -> None:
    """An offset behind the reader's back: the log was begun anew, or the reader stood behind its end."""
    if offset < span.position:
        span.start = offset
    span.position = offset
