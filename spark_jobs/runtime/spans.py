"""Detect data loss: compare the offsets that a job needs with Kafka's log start and end. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from outbox.protocol.checkpoint import CheckpointError, HalfCheckpoint, parse_half_checkpoint

BROKER_SKEW_MS = 60_000
"""How far the clocks of two brokers may differ, ms. No setting of the audit: a larger difference is a fault of the
cluster."""

Offsets = Mapping[str, Mapping[str, int]]
"""Offsets by topic and partition, as Spark writes them."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets of a Kafka partition that are not landed, and never will be: an operator accepted their loss."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int

    @property
    def offsets(self) -> int:
        """How many offsets; markers and aborted records count."""
        return self.last_offset - self.first_offset + 1

    def __str__(self) -> str:
        """Return the gap for people: `orders/0 31..50`."""
        return f"{self.topic}/{self.partition} {self.first_offset}..{self.last_offset}"


Span = tuple[int, int]
"""First offset, and first offset behind."""

Spans = Mapping[str, Mapping[int, Span]]
"""By topic and partition."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the relay had committed of a half partition, offset and metadata, when the audit began."""

    offset: int
    metadata: str

    def parse(self, topic_id: str, partition: int) -> HalfCheckpoint | None:
        try:
            return parse_half_checkpoint(self.metadata, self.offset, topic_id, partition)
        except CheckpointError:
            return None


def with_added(needed: Offsets, beginnings: Offsets) -> Offsets:
    """Return what a job needs, with the partitions that it has not read yet, each from offset 0.

    Spark reads a partition that is new to a checkpoint from its beginning, and fails if that is not offset 0.
    """
    return {
        topic: {**dict.fromkeys(beginnings.get(topic, {}), 0), **needed.get(topic, {})}
        for topic in sorted({*needed, *beginnings})
    }


def gaps_at_beginnings(needed: Offsets, beginnings: Offsets, ends: Offsets, topics: Collection[str]) -> tuple[Gap, ...]:
    """Return what Kafka removed from the beginning of partitions before it was landed.

    Partitions that are gone, and those that end before what was landed, have no gap that ends somewhere.

    Args:
        needed: The first offset that is not landed, by topic and partition.
        ends: The first offsets that Kafka has not yet written.
    """
    return tuple(
        Gap(topic, int(partition), offset, beginning - 1)
        for topic, partition, offset in _flat(needed)
        if topic in topics
        and (beginning := _at(beginnings, topic, partition)) is not None
        and offset < beginning <= (_at(ends, topic, partition) or 0)
    )


def behind(needed: Offsets, gaps: Iterable[Gap]) -> Offsets:
    """Return what a job needs once it has accepted gaps."""
    moved = {topic: dict(partitions) for topic, partitions in needed.items()}
    for gap in gaps:
        moved.setdefault(gap.topic, {})[str(gap.partition)] = gap.last_offset + 1
    return moved


def lost_topics(needed: Offsets, beginnings: Offsets, ends: Offsets) -> tuple[str, ...]:
    """Return the topics of which something is gone."""
    return tuple(topic for topic in sorted(needed) if lost_spans({topic: needed[topic]}, beginnings, ends))


def lost_spans(needed: Offsets, beginnings: Offsets, ends: Offsets) -> str:
    """Return the offsets that are gone, for people; empty if none are.

    Args:
        needed: The first offset that is not landed, by topic and partition.
        ends: The first offsets that Kafka has not yet written.
    """
    spans = []
    for topic, partition, offset in _flat(needed):
        place = f"{topic}/{partition}"
        beginning, end = _at(beginnings, topic, partition), _at(ends, topic, partition)
        if beginning is None or end is None:
            spans.append(f"{place} from {offset} on (the partition is gone)")
        elif beginning > offset:
            spans.append(f"{place} {offset}..{beginning - 1}")
        elif end < offset:
            spans.append(f"{place} from {end} on (it ended at {offset} before)")
    return ", ".join(spans)


def needed_text(needed: Offsets, topics: Mapping[str, str] | list[str]) -> str:
    """From which offsets on topics are not landed, for people: `orders/0 from 31 on, orders/1 from 7 on`."""
    return ", ".join(
        f"{topic}/{partition} from {offset} on" for topic, partition, offset in _flat(needed) if topic in topics
    )


def read_text(start: Offsets, end: Offsets) -> str:
    """Return the offsets of a batch as text: `orders/0 0..120, orders/1 5..90`, ends exclusive."""
    return ", ".join(
        f"{topic}/{partition} {_at(start, topic, partition) or 0}..{last}"
        for topic, partition, last in _flat(end)
        if (_at(start, topic, partition) or 0) != last
    )


def by_topic(offsets: Mapping[tuple[str, int], int]) -> Offsets:
    """Offsets by topic and partition, of those by place."""
    found: dict[str, dict[str, int]] = {}
    for (name, number), offset in offsets.items():
        found.setdefault(name, {})[str(number)] = offset
    return found


def _flat(offsets: Offsets) -> Iterator[tuple[str, str, int]]:
    for topic, partitions in sorted(offsets.items()):
        for partition, offset in sorted(partitions.items(), key=lambda item: int(item[0])):
            yield topic, partition, offset


def _at(offsets: Offsets, topic: str, partition: str) -> int | None:
    return offsets.get(topic, {}).get(partition)
