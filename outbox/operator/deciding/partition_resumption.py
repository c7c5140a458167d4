"""Resume half partitions that were written to before they had a checkpoint: a channel that grew (R84)."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message, TopicPartition

from outbox._kafka.admin import admin_client, end_offset
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.groups import commit_missing, missing_offsets
from outbox._kafka.range_reader import Span, SpanReader
from outbox.errors import KafkaUnreachable, UsageError
from outbox.operator.reading.delivered_search import DeliveredSearch
from outbox.operator.state.discarded import Gap
from outbox.operator.state.repairs import StoredHalf, first_checkpoint
from outbox.protocol.checkpoint import CheckpointError, OpCheckpoint
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import parse_half
from outbox.protocol.names import Channel, Place


@dataclass
class ResumedPartition:
    """One half partition without a checkpoint, and of how many of its halves a real topic shows the message.

    Args:
        why: Why real topics cannot prove what was delivered of it; None: they can.
    """

    partition: int
    halves: int = 0
    halves_found_delivered: int = 0
    why: str | None = None


@dataclass
class ChannelResumption:
    """The half partitions of a channel that have no checkpoint, and were written to.

    Args:
        most: Records that are read of a real topic at most.
        trusted: Topics of which the operator declares that what is not found there was not delivered.
    """

    kafka: Mapping[str, str]
    channel: Channel
    most: int
    trusted: frozenset[str] = frozenset()

    partitions: Sequence[ResumedPartition] = ()
    gaps: Sequence[Gap] = ()
    is_resumed: bool = False
    _checkpoints: dict[Place, TopicPartition] = field(default_factory=dict)

    def find(self, passed: Callable[[int], None]) -> None:
        """Find the half partitions, and what of them is on real topics. Nothing is written."""
        admin = admin_client(self.kafka)
        described = verify_channel(admin, self.channel)
        places = [(described.half.name, number) for number in described.numbers()]
        missing = missing_offsets(self.kafka, self.channel.relay_group, places)
        self.partitions = [ResumedPartition(number) for _, number in sorted(missing)]
        with SpanReader(self.kafka, self.channel.relay_group) as reader:
            spans = {one.partition: reader.whole(described.half.name, one.partition) for one in self.partitions}
            for one in self.partitions:
                one.why = self._refusal(spans[one.partition], end_offset(admin, described.discard.name, one.partition))
            provable = [one for one in self.partitions if not one.why]
            found = self._search(reader.read(spans[one.partition] for one in provable), provable, passed)
        for one in provable:
            self._conclude(described, one, *found[one.partition])

    def _refusal(self, span: Span, discards: int | None) -> str | None:
        if discards is None:
            raise KafkaUnreachable(f"{self.channel.discard_topic}/{span.partition} does not answer: try again")
        if span.start:
            return f"it begins at offset {span.start}: what was before may be delivered, or lost"
        if discards:
            return (
                "its discard partition was written to: what was dropped there is not distinct from what was delivered"
            )
        return None

    def _search(
        self, messages: Iterator[Message], provable: Sequence[ResumedPartition], passed: Callable[[int], None]
    ) -> Mapping[int, tuple[list[StoredHalf], set[str]]]:
        """Return the halves of each partition, and the transactions of them that real topics show."""
        halves: dict[int, list[StoredHalf]] = defaultdict(list)
        since: dict[str, int] = {}
        now = time.time_ns() // 1_000_000
        for message in messages:
            offset, appended = message.offset() or 0, message.timestamp()[1]
            try:
                control = parse_half(headers_of(message))
            except ProtocolError:
                halves[message.partition() or 0].append(StoredHalf(offset, ""))
                continue
            halves[message.partition() or 0].append(StoredHalf(offset, control.transaction_id))
            stamped = control.options.timestamp
            since[control.topic] = min(
                since.get(control.topic, appended), appended if stamped is None else min(stamped, appended)
            )
            now = max(now, appended)
        origins = [str(one.partition) for one in provable]
        searched = DeliveredSearch(self.kafka, self.channel, origins, self.most, now, passed).search(since)
        self.gaps = [gap for gap in searched.gaps if gap.topic not in self.trusted]
        ids = {transaction_id for found in searched.transactions.values() for transaction_id in found}
        return {one.partition: (halves[one.partition], ids) for one in provable}

    def _conclude(
        self, described: ChannelDescription, one: ResumedPartition, halves: Sequence[StoredHalf], delivered: set[str]
    ) -> None:
        one.halves, one.halves_found_delivered = len(halves), sum(half.transaction_id in delivered for half in halves)
        half = first_checkpoint(halves, delivered)
        try:
            text = half.encode(described.half.id, one.partition)
        except CheckpointError:
            one.why = "delivered and other halves alternate too often for one checkpoint"
            return
        for topic, offset, metadata in (
            (described.half, half.offset, text),
            (described.op, 0, OpCheckpoint(0, 0).encode(described.op.id, one.partition)),
        ):
            place = (topic.name, one.partition)
            self._checkpoints[place] = TopicPartition(*place, offset, metadata)

    @property
    def is_provable(self) -> bool:
        return not self.gaps and not any(one.why for one in self.partitions)

    @property
    def outcome(self) -> str:
        if self.is_resumed:
            return "resumed"
        if not self.partitions:
            return "nothing to resume"
        return "possible" if self.is_provable else "refused"

    def document(self) -> dict[str, Any]:
        return {
            "channel": self.channel.name,
            "outcome": self.outcome,
            "partitions": self.partitions,
            "not_searched": self.gaps,
        }

    def lines(self) -> Iterator[str]:
        yield f"channel {self.channel.name}: {self.outcome}"
        for one in self.partitions:
            if one.why:
                yield f"half partition {one.partition} cannot be resumed: {one.why}"
            else:
                found = f"{one.halves_found_delivered} of {one.halves} halves are delivered"
                yield f"half partition {one.partition}: {found}, a relay gets the others"
        yield from (f"not searched: {gap}" for gap in self.gaps)

    def resume(self) -> None:
        """Commit the checkpoints, where there is none yet."""
        committed = commit_missing(self.kafka, self.channel.relay_group, self._checkpoints)
        half = {place for place in self._checkpoints if place[0] == self.channel.half_topic}
        if late := sorted(half - committed):
            names = ", ".join(f"{topic}/{number}" for topic, number in late)
            raise UsageError(f"{names} got a checkpoint meanwhile, which was not changed. Run this again.")
        self.is_resumed = True
