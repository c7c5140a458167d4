"""Read how far a channel is delivered: the relay's checkpoints, then the discard topic; the order is a rule (R11).

A transaction whose last half is below a checkpoint was delivered, rolled back, or moved to the discard topic. If
that topic were read first, one that moves there in between would be seen in neither place: its row would be purged, and
with it the decision.

A relay moves a transaction there in the Kafka transaction that moves its checkpoint on. Kafka shows the two at
different moments: the checkpoint may be seen while the discard record is still behind the last stable offset. So what
was read is compared with the end of the partition that readers do not see yet.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from checker.rules.settlement import ChannelProgress, HalfPartition
from outbox._kafka.admin import checked_properties, end_offsets, refused, start_offsets
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.groups import committed_checkpoints
from outbox._kafka.range_reader import Span, SpanReader
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.checkpoint import HalfCheckpoint, parse_half_checkpoint
from outbox.protocol.discard import DiscardReason, is_manifest_key, parse_manifest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.half import Headers
from outbox.protocol.identifiers import check_uuid
from outbox.protocol.names import Place
from outbox.protocol.op import OpEntry, OpKind, parse_op

SILENCE_SECONDS = 2.0
"""Time without records after which a partition counts as held back, in seconds."""

_POLL_SECONDS = 0.2
_READ_AT_ONCE = 1_000
_UNREADABLE = "UNREADABLE"

log = structlog.get_logger()


class DiscardIndex:
    """Set of the transactions in the discard topic."""

    def __init__(self, kafka: Mapping[str, str], admin: AdminClient, channel: ChannelDescription) -> None:
        self._admin = admin
        self._topic = channel.channel.discard_topic
        self._next = [0] * channel.partitions
        self._keys: defaultdict[str, set[bytes]] = defaultdict(set)
        self._reasons: dict[str, str] = {}
        self._topic_id = channel.half.id
        self._malformed: dict[str, tuple[int, int]] = {}
        with checked_properties():
            self._consumer = Consumer(
                {
                    "auto.offset.reset": "earliest",  # compaction may have removed the first records
                    "fetch.wait.max.ms": 100,
                    "fetch.queue.backoff.ms": 5,
                    "queued.max.messages.kbytes": 16_384,
                    **kafka,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "group.id": channel.channel.relay_group,  # never joined: partitions are assigned by hand
                    "isolation.level": "read_committed",
                }
            )

    def reasons(self) -> dict[str, str]:
        """Return the reason of each discarded transaction, by its id, as far as was read."""
        return {id_: self._reasons.get(id_, _UNREADABLE) for id_ in self._keys}

    def malformed(self) -> frozenset[tuple[int, int]]:
        """Return half partition and offset of each discarded half that cannot be parsed, as far as was read.

        Its transaction is unknown: it was discarded under an id of its own.
        """
        return frozenset(self._malformed.values())

    def read_on(self) -> frozenset[int]:
        """Read what was written up to now.

        Returns:
            The partitions of which everything is known that was written before the call. In the others a Kafka
            transaction is open.
        """
        ends = end_offsets(self._admin, {self._topic: len(self._next)}).get(self._topic)
        if ends is None:
            raise KafkaUnreachable(f"the ends of {self._topic} cannot be seen")
        self._begin_anew_where_cut(ends)
        if self._behind(ends):
            self._read(ends)
        return frozenset(range(len(ends))) - self._behind(ends)

    def close(self) -> None:
        self._consumer.close()

    def _behind(self, ends: Sequence[int]) -> set[int]:
        return {number for number, end in enumerate(ends) if self._next[number] < end}

    def _begin_anew_where_cut(self, ends: Sequence[int]) -> None:
        """Detect a partition that ends before what was read: it lost records, and others may have taken their offsets.

        Known ids are kept: keeping a row too many is harmless.
        """
        for number, end in enumerate(ends):
            if self._next[number] > end:
                place = f"{self._topic}/{number}"
                log.error("Discard partition lost records; reading it again", place=place, read=self._next[number])
                self._next[number] = 0

    def _read(self, ends: Sequence[int]) -> None:
        behind = self._behind(ends)
        self._consumer.assign([TopicPartition(self._topic, number, self._next[number]) for number in behind])
        heard = time.monotonic()
        try:
            while self._behind(ends) and time.monotonic() < heard + SILENCE_SECONDS:
                first = self._consumer.poll(_POLL_SECONDS)
                for message in [first, *self._consumer.consume(_READ_AT_ONCE, 0)] if first is not None else []:
                    if self._take(message):
                        heard = time.monotonic()
        finally:
            self._consumer.unassign()

    def _take(self, message: Message) -> bool:
        """Note a record, or the end of a partition, behind the marks of Kafka transactions; whether it is one."""
        error, number, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is None:
            self._next[number] = offset + 1
            self._note(message.key() or b"", message.value())
            return True
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes carry an underscore
            self._next[number] = max(self._next[number], offset)
            return True
        if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise refused(f"reading {self._topic}", KafkaException(error))
        return False  # librdkafka tries again

    def _note(self, key: bytes, value: bytes | None) -> None:
        id_ = key.partition(b"/")[0].decode(errors="replace")
        if not _is_id(id_):
            return  # a foreign record: its key has no transaction id, and databases would refuse it
        if value is None:
            self._forget(id_, key)
            return
        self._keys[id_].add(key)
        if is_manifest_key(key):
            self._note_manifest(id_, value)

    def _note_manifest(self, id_: str, value: bytes) -> None:
        try:
            manifest = parse_manifest(value)
        except ProtocolError:
            self._reasons[id_] = _UNREADABLE  # perhaps of a newer format: it is in the discard topic all the same
            return
        self._reasons[id_] = str(manifest.reason)
        if manifest.reason is DiscardReason.MALFORMED and manifest.topic_id == self._topic_id:
            self._malformed[id_] = (manifest.partition, manifest.offsets[0][1])

    def _forget(self, id_: str, key: bytes) -> None:
        """Remove a record; the transaction goes with its last record."""
        self._keys[id_].discard(key)
        if not self._keys[id_]:
            del self._keys[id_]
            self._reasons.pop(id_, None)
            self._malformed.pop(id_, None)


def _is_id(text: str) -> bool:
    try:
        check_uuid(text)
    except ProtocolError:
        return False
    return True


LOOK_BACK = 200_000
"""Op records of each op and verdict partition that are read at first; later only those that are new."""

MOST = 50_000
"""Rolled-back transactions that are remembered, the newest ones."""

_ROLLBACK = f"{OpKind.ROLLBACK} ".encode()


class Rollbacks:
    """Reader of the transactions with a ROLLBACK op marker; thread-safe."""

    def __init__(self, kafka: Mapping[str, str], channel: ChannelDescription) -> None:
        self._kafka = kafka
        self._channel = channel
        self._next: dict[Place, int] = {}
        self._found: deque[str] = deque(maxlen=MOST)
        self._reading = threading.Lock()

    def read_on(self) -> Sequence[str]:
        """Read what was written up to now, and return the ids of all that are remembered."""
        with self._reading:
            topics, numbers = (self._channel.op, self._channel.verdict), range(self._channel.partitions)
            with SpanReader(self._kafka, self._channel.channel.relay_group) as reader:
                spans = [self._unread(reader.whole(topic.name, number)) for topic in topics for number in numbers]
                for message in reader.read(spans):
                    is_verdict = message.topic() == self._channel.verdict.name
                    ops = rolled_back(message.value() or b"", headers_of(message), verdict=is_verdict)
                    ours = (self._channel.half.id, message.partition())
                    self._found.extend(op.transaction_id for op in ops if (op.topic_id, op.partition) == ours)
            self._next = {(span.topic, span.partition): span.stop for span in spans}
            return list(dict.fromkeys(self._found))

    def _unread(self, whole: Span) -> Span:
        start = self._next.get((whole.topic, whole.partition), whole.stop - LOOK_BACK)
        return Span(whole.topic, whole.partition, max(start, whole.start), whole.stop)


def rolled_back(value: bytes, headers: Headers, *, verdict: bool) -> Sequence[OpEntry]:
    """Return the rollbacks in a record that a relay does not drop; nearly all records have none."""
    if _ROLLBACK not in value:
        return ()
    try:
        _, entries = parse_op(value, headers, verdict=verdict)
    except ProtocolError:
        return ()
    return [entry for entry in entries if entry.kind is OpKind.ROLLBACK]


FRESH_SECONDS = 2.0
"""Time for which databases share one reading, in seconds."""


class _Discards(NamedTuple):
    """Content of the discard topic.

    Args:
        known: Half partitions of which everything is known that was written before the look.
        reasons: By transaction id.
        malformed: Half partition and offset of the halves that cannot be parsed.
    """

    known: frozenset[int]
    reasons: Mapping[str, str]
    malformed: frozenset[tuple[int, int]]


class DeliveryReader:
    """Reader of the state of a channel's delivery; thread-safe."""

    def __init__(self, kafka: Mapping[str, str], admin: AdminClient, channel: ChannelDescription) -> None:
        self.channel = channel
        self._kafka = kafka
        self._admin = admin
        self._index = DiscardIndex(kafka, admin, channel)
        self._rollbacks = Rollbacks(kafka, channel)
        self._reading = threading.Lock()
        self._indexing = threading.Lock()
        self._last: tuple[float, ChannelProgress] | None = None

    def progress(self) -> ChannelProgress:
        """How far the channel is delivered, as of a few seconds ago at most."""
        with self._reading:
            if self._last is None or time.monotonic() > self._last[0] + FRESH_SECONDS:
                self._last = (time.monotonic(), self.read())
            return self._last[1]

    def read(self) -> ChannelProgress:
        """How far the channel is delivered now. As `progress()`."""
        checkpoints = self._read_checkpoints()
        discards = self._read_discards()
        return self._progress(checkpoints, discards)

    def in_discard_topic(self, transaction_ids: Collection[str]) -> frozenset[str]:
        """Return those of some transactions that are in the discard topic now; none if that is unknown."""
        discards = self._read_discards()
        if len(discards.known) < self.channel.partitions:
            return frozenset()
        return frozenset(id_ for id_ in transaction_ids if id_ in discards.reasons)

    def rolled_back(self) -> Sequence[str]:
        """Return the transactions with a ROLLBACK op marker, as far as they are remembered.

        Without READ on the op topic there are none; that is logged.
        """
        try:
            return self._rollbacks.read_on()
        except KafkaUnreachable:
            raise
        except ConfigurationError as error:
            log.warning("Op markers cannot be compared with rows: grant READ on the op topic", reason=str(error))
            return ()

    def close(self) -> None:
        with self._indexing:
            self._index.close()

    def _read_checkpoints(self) -> dict[int, HalfCheckpoint | str]:
        """Return the relay's checkpoint of each half partition, or why there is none that can be trusted."""
        half = self.channel.half
        places = [(half.name, number) for number in range(self.channel.partitions)]
        found = committed_checkpoints(self._kafka, self.channel.channel.relay_group, places, stable=False)
        return {place[1]: _parsed(found.get(place), half.id, place) for place in places}

    def _read_discards(self) -> _Discards:
        """Return the present content of the discard topic."""
        with self._indexing:
            return _Discards(self._index.read_on(), self._index.reasons(), self._index.malformed())

    def _progress(self, checkpoints: Mapping[int, HalfCheckpoint | str], discards: _Discards) -> ChannelProgress:
        name, counts = self.channel.half.name, {self.channel.half.name: self.channel.partitions}
        starts, ends = start_offsets(self._admin, counts).get(name), end_offsets(self._admin, counts).get(name)
        if starts is None or ends is None:
            raise KafkaUnreachable(f"the ends of {name} cannot be seen")
        credible = {number: _within(found, ends[number], (name, number)) for number, found in checkpoints.items()}
        partitions = {
            number: HalfPartition(
                starts[number],
                ends[number],
                checkpoint if isinstance(checkpoint, HalfCheckpoint) else None,
                self._problem(number, checkpoint, discards.known),
            )
            for number, checkpoint in credible.items()
        }
        return ChannelProgress(self.channel.half.id, partitions, discards.reasons, discards.malformed)

    def _problem(self, number: int, checkpoint: HalfCheckpoint | str, known: Collection[int]) -> str:
        if isinstance(checkpoint, str):
            return checkpoint
        if number not in known:
            return f"a Kafka transaction without an end keeps {self.channel.channel.discard_topic}/{number} back"
        return ""


def _within(checkpoint: HalfCheckpoint | str, end: int, place: tuple[str, int]) -> HalfCheckpoint | str:
    """Return a checkpoint, unless its half partition ends before it; the end was read after it.

    Then records were lost, and it would cover unread records that were written in their place.
    """
    if isinstance(checkpoint, str) or checkpoint.head <= end:
        return checkpoint
    return (
        f"{place[0]}/{place[1]} ends at offset {end}, and a relay has read up to {checkpoint.head}: "
        "Kafka has lost records that it had acknowledged"
    )


def _parsed(found: TopicPartition | None, topic_id: str, place: tuple[str, int]) -> HalfCheckpoint | str:
    if found is None:
        return f"{place[0]}/{place[1]} has no checkpoint"
    try:
        return parse_half_checkpoint(found.metadata or "", found.offset, topic_id, place[1])
    except ProtocolError as error:
        return f"{place[0]}/{place[1]}: {error}"
