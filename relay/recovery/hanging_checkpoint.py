"""Ends a hanging transaction that holds a checkpoint back (R51).

A hanging transaction is one whose end marker a broker has skipped (KAFKA-20734). Kafka then gives the group's offsets
out no more. Its coordinator has written in `__transaction_state` how it was decided, and where it wrote. The next
transaction of the same producer id ends it along with its own, whichever way that goes. So one is written for nothing
but its end: as it was decided, or as aborted if it hangs wherever it wrote. No reader has got anything of it then, the
checkpoint before it owes all of it, and nothing is left on real topics that a later abort could lose.

An end as committed may itself be cut off, and is aborted then: the hanging checkpoint is gone, although readers see
its messages. A note is committed before, beside an offset of the discard partition that is not read from. It names
the checkpoint that must not be gone on from.

The checkpoint of a table source is the number of its last batch.
"""

import enum
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Literal, NamedTuple, Self

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import checked_properties, describe_topics, end_offset
from outbox._kafka.groups import committed_checkpoints, is_group_refused
from outbox._service.exit_codes import UnsafeError
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.discard import message_key
from outbox.protocol.names import Channel
from outbox.protocol.record import Record
from relay.delivery.transactional_delivery import TransactionalDelivery
from relay.recovery.author import Author, Found, backwards
from relay.recovery.hanging_transactions import as_record
from relay.recovery.offset_reader import OffsetReader
from relay.recovery.transaction_state import (
    Decision,
    Outcome,
    TransactionalIdState,
    UndecidedError,
    key_of,
    last_decision,
    parse_state,
    partition_of,
)


class Held(enum.Enum):
    """What readers have seen of a hanging transaction on a partition."""

    ITSELF = "nothing: its own record is the first one that they do not see"
    BY_OTHERS = "nothing yet: a record of another transaction is the first one that they do not see"
    SEEN = "perhaps something"


class Hold:
    """What holds partitions back that a hanging transaction wrote to."""

    def __init__(self, kafka: Mapping[str, str], admin: AdminClient, channel: Channel, author: Author) -> None:
        self._kafka = kafka
        self._admin = admin
        self._channel = channel
        self._author = author

    def of(self, places: Sequence[tuple[str, int]]) -> set[Held]:
        """Return what holds some topics and partitions back."""
        there = describe_topics(self._admin, sorted({topic for topic, _ in places})) if places else {}
        return {self._held(*place) if place[0] in there else Held.SEEN for place in places}

    def _held(self, topic: str, partition: int) -> Held:
        end = end_offset(self._admin, topic, partition)
        stable = end_offset(self._admin, topic, partition, stable=True)
        if end is None or stable is None:
            raise KafkaUnreachable(f"{topic}/{partition} has no leader that answers")
        if stable >= end:
            return Held.SEEN
        if topic == self._channel.discard_topic:  # no other process writes to that partition
            return Held.ITSELF
        own = self._author.last_own(self._record_at(topic, partition, stable), ())
        return Held.ITSELF if own is not None and own.is_owed else Held.BY_OTHERS

    def _record_at(self, topic: str, partition: int, offset: int) -> Sequence[Found]:
        group = self._channel.relay_group
        with closing(OffsetReader(self._kafka, topic, partition, group, isolation="read_uncommitted")) as reader:
            return [Found(as_record(message), offset) for message in reader.read_at([offset])]


TOPIC, OFFSETS = "__transaction_state", "__consumer_offsets"
READ_AT_ONCE = 20_000
NOTE_SECONDS = 5.0
"""Maximum time for the broker to show the note after it acknowledged the commit."""
PAUSE_SECONDS = 0.05

Word = Literal["decide", "abort", "commit"]
"""What an operator wants: Kafka's own decision, or one of the two."""

_WORDS = {"abort": Outcome.ABORTED, "commit": Outcome.COMMITTED}
_NOBODY = "00000000-0000-0000-0000-000000000000"

log = structlog.get_logger()


class Checkpointed(NamedTuple):
    """An owner of a half partition or of a table source, and where its checkpoint is."""

    name: str  # of the half partition or the table source, for messages
    transactional_id: str
    group: str  # consumer group that the checkpoint is committed in
    place: tuple[str, int]  # topic and partition that it is committed for
    note: tuple[str, int]  # topic and partition that the note is committed for
    mark: Record | None  # what the end writes besides offsets, so that it also ends what hangs on that partition

    @classmethod
    def half_partition(cls, channel: Channel, number: int) -> Self:
        """Return the owner of a half partition. Besides real topics it writes to the discard partition."""
        discards = (channel.discard_topic, number)
        mark = Record(*discards, message_key(_NOBODY, 0), None, [], 0)
        name, place = f"{channel.half_topic}/{number}", (channel.half_topic, number)
        return cls(name, channel.transactional_id(number), channel.relay_group, place, discards, mark)

    @classmethod
    def table_source(cls, channel: Channel, source: str) -> Self:
        """Return the owner of a table source. It writes to real topics only."""
        group, name = channel.table_group(source), f"table source {source}"
        note = (channel.progress_topic, 1) if channel.tables_only else (channel.discard_topic, 0)
        return cls(name, group, group, channel.progress, note, None)


AuthorOf = Callable[[TopicPartition | None], Author]
"""Returns what recognises the records that a checkpoint owes; None: there is no checkpoint yet."""


def end_hanging(
    kafka: Mapping[str, str], admin: AdminClient, channel: Channel, owner: Checkpointed, author_of: AuthorOf, word: Word
) -> None:
    """End what hangs of an owner's transactions on `__consumer_offsets`, and of a half partition on its discards."""
    # No other one can begin from now on; the offsets are those before the one that hangs.
    with closing(TransactionalDelivery(kafka, owner.transactional_id)) as delivery:
        before = committed_checkpoints(kafka, owner.group, [owner.place, owner.note], stable=False)
        checkpoint = before.get(owner.place)
        is_begun = _names(before.get(owner.note), checkpoint)
        outcome = Outcome.COMMITTED if is_begun else None
        outcome = _WORDS.get(word) or outcome or _outcome(kafka, admin, channel, owner, lambda: author_of(checkpoint))
        log.warning("Ending a hanging transaction", owner=owner.name, outcome=str(outcome))
        metadata = _group_metadata(kafka, owner.group)
        if outcome is Outcome.COMMITTED and not is_begun:
            _write_note(kafka, owner, _note(checkpoint), metadata)
        place = TopicPartition(*owner.note, 0, "")
        delivery.end_hanging(owner.mark, place, metadata, is_committed=outcome is Outcome.COMMITTED)


def refuse_undone_end(
    kafka: Mapping[str, str], owner: Checkpointed, checkpoint: TopicPartition | None, word: Word
) -> None:
    """Refuse a stable checkpoint whose successor was to be committed, and is gone; the word "abort" accepts it."""
    try:
        note = committed_checkpoints(kafka, owner.group, [owner.note], stable=False).get(owner.note)
    except ConfigurationError as error:
        raise KafkaUnreachable(f"reading the note beside its checkpoint failed: {error}") from error
    if word != "abort" and _names(note, checkpoint):
        offset = "none" if checkpoint is None else checkpoint.offset
        raise UnsafeError(
            f"after the checkpoint of {owner.name} at offset {offset} the relay wrote another one that was "
            "committed and is lost: its transaction was only partly committed. Some of its messages may be visible. "
            "To deliver everything since the old checkpoint again, start one relay with "
            "OUTBOX_HANGING_TRANSACTION=abort"
        )


def decided(kafka: Mapping[str, str], admin: AdminClient, owner: Checkpointed) -> Decision:
    """Return how the last transaction of an owner that wrote a checkpoint or discards ends, as Kafka has it."""
    topic = describe_topics(admin, [TOPIC]).get(TOPIC)
    if topic is None:
        raise KafkaUnreachable(f"{TOPIC} is not described")
    id_ = owner.transactional_id
    number, key = partition_of(id_, topic.partitions), key_of(id_)
    with closing(OffsetReader(kafka, TOPIC, number, owner.group, "read_uncommitted")) as reader:
        spans = backwards(*reader.bounds(), READ_AT_ONCE)
        states = (state for span in spans for state in reversed(_states(reader, span, key)))
        found = last_decision(states, lambda places: any(one == owner.note or one[0] == OFFSETS for one in places))
    if found is None:
        raise UndecidedError(
            f"{TOPIC} no longer contains the end of the last transaction of {id_}. Check whether readers "
            "see messages that the checkpoint owes: see docs/operations/recovery.md, 'A checkpoint that is held back'"
        )
    return found


def _outcome(
    kafka: Mapping[str, str], admin: AdminClient, channel: Channel, owner: Checkpointed, author: Callable[[], Author]
) -> Outcome:
    decision = decided(kafka, admin, owner)
    if decision.outcome is Outcome.ABORTED or decision.places is None:
        return decision.outcome
    holds = Hold(kafka, admin, channel, author()).of([place for place in decision.places if place[0] != OFFSETS])
    return Outcome.COMMITTED if holds & {Held.SEEN, Held.BY_OTHERS} else Outcome.ABORTED


def _states(reader: OffsetReader, span: range, key: bytes) -> list[TransactionalIdState]:
    """Return the states of one transactional id at these offsets; none before it expired."""
    found: list[TransactionalIdState] = []
    for message in reader.read_on(span.start):
        if (message.offset() or 0) >= span.stop:
            break
        if message.key() == key:
            value = message.value()
            found = [] if value is None else [*found, parse_state(value)]
    return found


def _note(checkpoint: TopicPartition | None) -> str:
    """Name a checkpoint that must not be gone on from."""
    text = "none"
    if checkpoint is not None:
        text = f"{checkpoint.topic};{checkpoint.partition};{checkpoint.offset};{_string(checkpoint)}"
    return f"1;not from {zlib.crc32(text.encode()):08x}"


def _names(note: TopicPartition | None, checkpoint: TopicPartition | None) -> bool:
    return note is not None and _string(note) == _note(checkpoint)


def _string(place: TopicPartition) -> str:
    return (place.metadata or "").rstrip("\0")


def _write_note(kafka: Mapping[str, str], owner: Checkpointed, note: str, group_metadata: bytes) -> None:
    """Commit a note, and wait until it is there. Its own producer id ends nothing that hangs."""
    with closing(TransactionalDelivery(kafka, f"{owner.transactional_id}-note")) as delivery:
        delivery.commit([], [TopicPartition(*owner.note, 0, note)], group_metadata)
    deadline = time.monotonic() + NOTE_SECONDS
    while True:
        found = committed_checkpoints(kafka, owner.group, [owner.note], stable=False).get(owner.note)
        if found is not None and _string(found) == note:
            return
        if time.monotonic() > deadline:
            raise KafkaUnreachable(f"the note on the hanging transaction of {owner.name} is not committed yet")
        time.sleep(PAUSE_SECONDS)


def _group_metadata(kafka: Mapping[str, str], group: str) -> bytes:
    """Metadata of a consumer that is no member: the transactional id alone fences here."""
    with checked_properties():
        consumer = Consumer({**kafka, "group.id": group})
    with closing(consumer):
        metadata: bytes = consumer.consumer_group_metadata()
        return metadata


CHECKPOINT_SECONDS = 4.0
"""For committed offsets, and the ends of their topics. Their transactions have ended when they are asked for, so that
Kafka need not wait for any."""

HELD_BACK = "holds the checkpoint back for a transaction that is still open"
"""What Kafka does then. After the former owner was fenced none should be open."""


class HeldBackError(KafkaUnreachable):
    """Kafka holds a checkpoint or discard records back for a transaction without an end."""


def why_unreadable(
    error: KafkaException, kafka: Mapping[str, str], group: str, place: tuple[str, int]
) -> KafkaUnreachable:
    """Return why checkpoints could not be read: Kafka has them, but holds them back, or a right is missing, or else."""
    cause: KafkaError = error.args[0]
    unknown = KafkaUnreachable(f"{cause.str()}")
    if cause.code() != KafkaError._TIMED_OUT:  # noqa: SLF001 - librdkafka's own codes carry an underscore
        return unknown
    consumer = Consumer({**kafka, "group.id": group, "isolation.level": "read_uncommitted"})
    try:
        consumer.committed([TopicPartition(*place)], CHECKPOINT_SECONDS)
    except KafkaException:
        refused = f"the relay lacks the right READ on group {group}. Grant it."
        return KafkaUnreachable(refused) if is_group_refused(consumer) else unknown
    finally:
        consumer.close()
    return HeldBackError(f"Kafka {HELD_BACK}. If this persists, see docs/operations/recovery.md")
