"""What an audit reads, fixed as offsets in an order that makes the proof sound; docs/spark/audit.md gives the reasons.

1. the window's half offsets, and the relay's checkpoints,
2. the ends of the discard topic,
3. the ends of the real topics,
4. the ends of the op topic and of the half topic.

The snapshots of the databases come after all of these.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from outbox.protocol.names import Channel, Place
from spark_jobs.auditing.window import Inputs, Window
from spark_jobs.runtime.errors import SourceError
from spark_jobs.runtime.kafka_offsets import KafkaOffsets, Topic
from spark_jobs.runtime.spans import Checkpoint, Span


class SpanPlan:
    """Finds where spans of topics begin and end, and notes what of them cannot be read.

    Args:
        now: ms since 1970.
        clock_skew: ms by which the clocks of two brokers may differ.
        patience: ms that open Kafka transactions are waited for.

    Attributes:
        incomplete: Why a topic cannot be read as it should, by topic.
        shortened: Topics of which Kafka has removed what should be old, and where.
    """

    def __init__(self, kafka: KafkaOffsets, window: Window, now: int, clock_skew: int, patience: int) -> None:
        self._kafka = kafka
        self._window = window
        self._now = now
        self._clock_skew = clock_skew
        self._patience = patience
        self.incomplete: dict[str, str] = {}
        self.shortened: dict[str, str] = {}

    def _committed_ends(self, topic: Topic) -> dict[Place, int]:
        ends, open_ = self._kafka.committed_ends(topic.places(), self._patience)
        for name, number in sorted(open_):
            self._note(name, f"a Kafka transaction stays open in partition {number} at offset {ends[name, number]}")
        return ends

    def _since(self, topic: Topic, time: int, ends: Mapping[Place, int]) -> dict[Place, int]:
        """Where records of this time or later begin; notes if Kafka may have removed some of them."""
        beginnings, found = self._kafka.beginnings(topic.places()), self._times(topic, time)
        starts = {place: at if 0 <= at <= ends[place] else ends[place] for place, at in found.items()}
        by_age_only = not topic.by_size and (topic.retention is None or time > self._now - topic.retention)
        for place, start in starts.items():
            if 0 < beginnings[place] >= start:
                why = f"partition {place[1]} begins at offset {beginnings[place]}: earlier ones are gone"
                add_note(self.shortened if by_age_only else self.incomplete, topic.name, why)
        return starts

    def _times(self, topic: Topic, time: int) -> dict[Place, int]:
        return self._kafka.since(topic.places(), time)

    def _note(self, topic: str, why: str) -> None:
        add_note(self.incomplete, topic, why)


class InputPlan(SpanPlan):
    """Fixes the spans of an audit, step by step."""

    def __init__(
        self, kafka: KafkaOffsets, channel: Channel, window: Window, now: int, clock_skew: int, patience: int
    ) -> None:
        super().__init__(kafka, window, now, clock_skew, patience)
        self._channel = channel
        names = (channel.half_topic, channel.op_topic, channel.verdict_topic, channel.discard_topic)
        self._internal = kafka.topics(names)
        if not self._internal:  # a channel of message tables only has no half
            progress = kafka.topics([channel.progress_topic]).values()
            self._internal = {name: replace(topic, partitions=0) for topic in progress for name in names}
        for name in names:
            if name not in self._internal:
                raise SourceError(f"Topic {name} does not exist. Create the channel, or correct its name.")
        # Ends first: whatever is below them was appended before, so that nothing young slips in behind.
        self._half = self._internal[channel.half_topic]
        ends = kafka.ends(self._half.places())
        starts = self._since(self._half, window.start, ends)
        behind = {
            place: at if 0 <= at <= ends[place] else ends[place]
            for place, at in self._times(self._half, window.end).items()
        }
        self._halves = {place[1]: (start, behind[place]) for place, start in starts.items()}
        self._checkpoints = self._read_checkpoints()
        self._discards = self._read_discards()

    def begun(self) -> Inputs:
        """Return what is fixed so far: enough to read the halves."""
        window, halves = self._window, self._halves
        return Inputs(self._channel.name, self._half.id, window, halves, checkpoints=self._checkpoints)

    def finish(self, since: Mapping[str, int]) -> Inputs:
        """Fix the rest, once it is known which real topics must be searched, and how far back, ms since 1970."""
        reals = dict(self._real_spans(since))
        ops, verdicts = (self._ops(name) for name in (self._channel.op_topic, self._channel.verdict_topic))
        half_ends = self._kafka.ends(self._half.places())
        return Inputs(
            self._channel.name,
            self._half.id,
            self._window,
            self._halves,
            {number: end for (_, number), end in half_ends.items()},
            ops,
            verdicts,
            self._discards,
            reals,
            self._checkpoints,
            self.incomplete,
            {topic: why for topic, why in self.shortened.items() if topic in reals},
        )

    def _ops(self, name: str) -> dict[int, Span]:
        """Return what the op or verdict topic has since the window began."""
        topic = self._internal[name]
        ends = self._committed_ends(topic)
        return _spans(self._since(topic, self._window.start - self._clock_skew, ends), ends)

    def _read_checkpoints(self) -> dict[int, Checkpoint]:
        found = self._kafka.checkpoints(self._channel.relay_group, self._half)
        for _, number in self._half.places():
            checkpoint = found.get(number)
            if checkpoint is None:
                self._note(self._half.name, f"the relay has no checkpoint of partition {number}")
            elif checkpoint.parse(self._half.id, number) is None:
                self._note(self._half.name, f"the relay's checkpoint of partition {number} cannot be trusted")
        return found

    def _read_discards(self) -> dict[int, Span]:
        """All of the discard topic: it is compacted, its content may be old."""
        topic = self._internal[self._channel.discard_topic]
        ends = self._committed_ends(topic)
        return _spans(self._kafka.beginnings(topic.places()), ends)

    def _real_spans(self, since: Mapping[str, int]) -> Iterator[tuple[str, dict[int, Span]]]:
        topics = self._kafka.topics(since) if since else {}
        for name in since:
            if name not in topics:
                self._note(name, "the topic does not exist")
        for name, topic in topics.items():
            if topic.compacted:
                self._note(name, "the topic is compacted: a record may be gone because a later one has its key")
            ends = self._committed_ends(topic)
            yield name, _spans(self._since(topic, since[name] - self._clock_skew, ends), ends)


def add_note(notes: dict[str, str], topic: str, why: str) -> None:
    """Note something of a topic, behind what is noted of it already."""
    before = notes.get(topic)
    notes[topic] = f"{before}; {why}" if before else why


def _spans(starts: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[int, Span]:
    return {number: (start, max(ends[name, number], start)) for (name, number), start in starts.items()}
