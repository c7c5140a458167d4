"""Ends a hanging transaction that holds a checkpoint back (R51).

A hanging transaction is one whose end marker a broker has skipped (KAFKA-20734). Kafka then gives the group's offsets
out no more. Its coordinator has written in `__transaction_state` how it was decided, and where it wrote. The next
transaction of the same producer id ends it along with its own, whichever way that goes. So one is written for nothing
but its end: as it was decided, or as aborted if it hangs wherever it wrote. No reader has got anything of it then, the
checkpoint before it owes all of it, and nothing is left on real topics that a later abort could lose.

An end as committed may itself be cut off, and is aborted then: the hanging checkpoint is gone, although readers see
its messages. A note is committed before, beside an offset of the discard partition that is not read from. It names
the checkpoint that must not be gone on from.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Literal

import structlog
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import checked_properties, describe_topics
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.group_offsets import committed_checkpoints
from outbox._service.exit_codes import UnsafeError
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.checkpoint import parse_half_checkpoint
from outbox.protocol.discard import message_key
from outbox.protocol.record import Record
from relay import metrics
from relay.kafka.offset_reader import OffsetReader
from relay.kafka.transactional_delivery import TransactionalDelivery
from relay.recovery.checkpoint_hold import Held, Hold
from relay.recovery.hanging_transactions import backwards
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

TOPIC = "__transaction_state"
READ_AT_ONCE = 20_000
NOTE_SECONDS = 5.0
"""Maximum time for the broker to show the note after it acknowledged the commit."""
PAUSE_SECONDS = 0.05

Word = Literal["decide", "abort", "commit"]
"""What an operator wants: Kafka's own decision, or one of the two."""

_WORDS = {"abort": Outcome.ABORTED, "commit": Outcome.COMMITTED}
_NOBODY = "00000000-0000-0000-0000-000000000000"

log = structlog.get_logger()


def end_hanging(
    kafka: Mapping[str, str],
    admin: AdminClient,
    channel: ChannelDescription,
    number: int,
    word: Word,
    *,
    may_wait: bool = False,
) -> None:
    """End what hangs of a half partition's transactions on `__consumer_offsets` and on its discard partition.

    Args:
        kafka: librdkafka properties for the connection.
        admin: Client of the cluster.
        channel: The channel.
        number: Number of the half partition.
        word: What an operator wants.
        may_wait: Whether to wait for other transactions that hang before it.

    Raises:
        UndecidedError: Kafka does not record how it was decided.
        ConfigurationError: A right is missing, or Kafka does not answer.
        DeliveryError: It failed; try it again.
    """
    names = channel.channel
    transactional_id = names.transactional_id(number)
    delivery = TransactionalDelivery(kafka, transactional_id)  # no other one can begin from now on
    try:
        checkpoint, note = _last_committed(kafka, channel, number)
        is_begun = _names(note, checkpoint)
        outcome = _WORDS.get(word) or (
            Outcome.COMMITTED if is_begun else _outcome(kafka, admin, channel, number, checkpoint, may_wait=may_wait)
        )
        log.warning("Ending a hanging transaction", partition=number, outcome=str(outcome))
        metadata = _group_metadata(kafka, names.relay_group)
        if outcome is Outcome.COMMITTED and not is_begun:
            _write_note(kafka, channel, number, _note(checkpoint), metadata)
        nothing = Record(channel.discard.name, number, message_key(_NOBODY, 0), None, [], 0)
        place = TopicPartition(channel.discard.name, number, 0, "")
        delivery.end_hanging(nothing, place, metadata, is_committed=outcome is Outcome.COMMITTED)
        metrics.HANGING.labels(outcome).inc()
    finally:
        delivery.close()


def refuse_undone_end(
    kafka: Mapping[str, str], channel: ChannelDescription, number: int, checkpoint: TopicPartition, word: Word
) -> None:
    """Refuse a checkpoint whose successor was to be committed, and is gone.

    Args:
        kafka: librdkafka properties for the connection.
        channel: The channel.
        number: Number of the half partition.
        checkpoint: Of the half partition, stable.
        word: What an operator wants; "abort" accepts it.

    Raises:
        UnsafeError: It is such a checkpoint.
        KafkaUnreachable: The note cannot be read now.
    """
    place = (channel.discard.name, number)
    try:
        note = _offsets(kafka, channel, [place]).get(place)
    except ConfigurationError as error:
        raise KafkaUnreachable(f"reading the note beside its checkpoint failed: {error}") from error
    if word != "abort" and _names(note, checkpoint):
        raise UnsafeError(
            f"the checkpoint of {channel.half.name}/{number} at offset {checkpoint.offset} is followed by one that was "
            "committed and is lost: the end of a hanging transaction was cut off. Messages after it may be visible. "
            "To deliver what it owes, some of it twice, start one relay with OUTBOX_HANGING_TRANSACTION=abort"
        )


def decided(kafka: Mapping[str, str], admin: AdminClient, group: str, transactional_id: str) -> Decision:
    """Return how the last decided transaction of a transactional id ends, as its coordinator has written.

    Raises:
        UndecidedError: It is not written there any more, or cannot be read.
        ConfigurationError: A right is missing, or Kafka does not answer.
    """
    topic = describe_topics(admin, [TOPIC]).get(TOPIC)
    if topic is None:
        raise KafkaUnreachable(f"{TOPIC} is not described")
    reader = OffsetReader(kafka, TOPIC, partition_of(transactional_id, topic.partitions), group, "read_uncommitted")
    key = key_of(transactional_id)
    try:
        spans = backwards(*reader.bounds(), READ_AT_ONCE)
        found = last_decision(state for span in spans for state in reversed(_states(reader, span, key)))
    finally:
        reader.close()
    if found is None:
        raise UndecidedError(
            f"{TOPIC} no longer contains the end of the last transaction of {transactional_id}. Check whether readers "
            "see messages that the checkpoint owes: see docs/operations/recovery.md, 'A checkpoint that is held back'"
        )
    return found


def _outcome(
    kafka: Mapping[str, str],
    admin: AdminClient,
    channel: ChannelDescription,
    number: int,
    checkpoint: TopicPartition,
    *,
    may_wait: bool,
) -> Outcome:
    """How the hanging transaction is ended."""
    names = channel.channel
    decision = decided(kafka, admin, names.relay_group, names.transactional_id(number))
    if decision.outcome is Outcome.ABORTED or decision.places is None:
        return decision.outcome
    half = parse_half_checkpoint(checkpoint.metadata or "", checkpoint.offset, channel.half.id, number)
    places = [place for place in decision.places if place[0] != "__consumer_offsets"]
    holds = Hold(kafka, admin, channel, number, half).of(places)
    if Held.SEEN in holds:
        return Outcome.COMMITTED
    if Held.BY_OTHERS in holds:
        if may_wait:
            raise KafkaUnreachable("others hang before it on its real topics, they are waited for")
        return Outcome.COMMITTED
    return Outcome.ABORTED


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


def _last_committed(
    kafka: Mapping[str, str], channel: ChannelDescription, number: int
) -> tuple[TopicPartition, TopicPartition | None]:
    """Return the checkpoint before the one that hangs, and the note."""
    half, note = (channel.half.name, number), (channel.discard.name, number)
    found = _offsets(kafka, channel, [half, note])
    if half not in found:
        raise UndecidedError(f"{channel.half.name}/{number} has no checkpoint before the one that hangs")
    return found[half], found.get(note)


def _offsets(
    kafka: Mapping[str, str], channel: ChannelDescription, places: list[tuple[str, int]]
) -> dict[tuple[str, int], TopicPartition]:
    return committed_checkpoints(kafka, channel.channel.relay_group, places, stable=False)


def _note(checkpoint: TopicPartition) -> str:
    """Name a checkpoint that must not be gone on from."""
    text = f"{checkpoint.topic};{checkpoint.partition};{checkpoint.offset};{_string(checkpoint)}"
    return f"1;not from {zlib.crc32(text.encode()):08x}"


def _names(note: TopicPartition | None, checkpoint: TopicPartition) -> bool:
    """Return whether a note names a checkpoint."""
    return note is not None and _string(note) == _note(checkpoint)


def _string(place: TopicPartition) -> str:
    return (place.metadata or "").rstrip("\0")


def _write_note(
    kafka: Mapping[str, str], channel: ChannelDescription, number: int, note: str, group_metadata: bytes
) -> None:
    """Commit a note, and wait until it is there. Its own producer id ends nothing that hangs.

    Raises:
        KafkaUnreachable: It is not there in time.
        DeliveryError: It failed.
    """
    place = (channel.discard.name, number)
    delivery = TransactionalDelivery(kafka, f"{channel.channel.transactional_id(number)}-note")
    try:
        delivery.commit([], [TopicPartition(*place, 0, note)], group_metadata)
    finally:
        delivery.close()
    deadline = time.monotonic() + NOTE_SECONDS
    while (found := _offsets(kafka, channel, [place]).get(place)) is None or _string(found) != note:
        if time.monotonic() > deadline:
            raise KafkaUnreachable(f"the note on the hanging transaction of partition {number} is not committed yet")
        time.sleep(PAUSE_SECONDS)


def _group_metadata(kafka: Mapping[str, str], group: str) -> bytes:
    """Metadata of a consumer that is no member: the transactional id alone fences here."""
    with checked_properties():
        consumer = Consumer({**kafka, "group.id": group})
    try:
        metadata: bytes = consumer.consumer_group_metadata()
        return metadata
    finally:
        consumer.close()
