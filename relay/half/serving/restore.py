"""Restore: a partition's ledger from its committed checkpoints, and from nothing else (R18)."""

from collections.abc import Sequence

import structlog
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import end_offset
from outbox._kafka.channel import ChannelDescription
from outbox._service.exit_codes import UnsafeError
from outbox.errors import KafkaUnreachable
from outbox.protocol.checkpoint import (
    CheckpointError,
    HalfCheckpoint,
    OpCheckpoint,
    parse_half_checkpoint,
    parse_op_checkpoint,
)
from outbox.protocol.errors import NewerFormatError, ProtocolError
from relay import metrics
from relay.half.ledger.partition_progress import Checkpoints
from relay.recovery.hanging_checkpoint import CHECKPOINT_SECONDS, HeldBackError

log = structlog.get_logger()


def read_checkpoints(
    consumer: Consumer, channel: ChannelDescription, number: int, *, deliver_again: bool = False
) -> list[TopicPartition]:
    """Return the committed offsets of a half, an op and a verdict partition; open transactions are waited for.

    A verdict partition without one is read from its beginning: a verdict that is read again changes nothing, and a
    channel that was made before its verdict topic has none. A half or op partition without one is refused:
    starting at a guess would lose or double (R22). With `deliver_again`, `verify_checkpoints` replaces it.
    """
    places = [TopicPartition(topic.name, number) for topic in (channel.half, channel.op, channel.verdict)]
    committed = consumer.committed(places, CHECKPOINT_SECONDS)
    for place in committed:
        if place.error is not None:
            raise KafkaException(place.error)
        if place.offset == OFFSET_INVALID and place.topic != channel.verdict.name and not deliver_again:
            raise UnsafeError(
                f"{place.topic}/{number} has no checkpoint in group {channel.channel.relay_group}: for a new channel "
                f"run `outbox channel create --channel {channel.channel.name}`; for one that grew or was served before "
                "`outbox resume`, see docs/operations/recovery.md, 'Lost checkpoints': a guess would lose or double"
            )
    return committed


def without_lost_ops(
    consumer: Consumer, channel: ChannelDescription, number: int, checkpoints: Checkpoints
) -> Checkpoints:
    """Return checkpoints that do not begin before the op and the verdict topic do."""
    op = _with_ops_that_are_there(consumer, channel.op.name, number, checkpoints.op)
    verdict = _with_ops_that_are_there(consumer, channel.verdict.name, number, checkpoints.verdict)
    return Checkpoints(checkpoints.half, op, verdict)


def verify_checkpoints(
    consumer: Consumer,
    channel: ChannelDescription,
    number: int,
    committed: Sequence[TopicPartition],
    *,
    deliver_again: bool = False,
    skip_lost: bool = False,
) -> Checkpoints:
    """Return the checkpoints of the committed offsets of a half, an op and a verdict partition.

    Args:
        committed: As `read_checkpoints()` returns them.
        deliver_again: Whether one that cannot be trusted is replaced by one without anything settled, at the
            beginning of the topic. It doubles what the topic still has; its offset is not believed, for that was
            perhaps moved forward by hand, and what is before it would be lost.
        skip_lost: Whether to go on without halves that were not settled and are gone from the topic.
    """
    half, op, verdict = committed
    start, end = consumer.get_watermark_offsets(TopicPartition(channel.half.name, number), CHECKPOINT_SECONDS)
    try:
        half_checkpoint = parse_half_checkpoint(_string(half), half.offset, channel.half.id, number)
    except ProtocolError as error:
        offset = _begin_anew(error, half, number, consumer, deliver_again=deliver_again)
        half_checkpoint = HalfCheckpoint(offset, offset)
    op_checkpoint = _op_checkpoint(consumer, op, channel.op.id, deliver_again=deliver_again)
    if verdict.offset == OFFSET_INVALID:
        verdict_checkpoint = OpCheckpoint(0, 0)
    else:
        verdict_checkpoint = _op_checkpoint(consumer, verdict, channel.verdict.id, deliver_again=deliver_again)
    if end < half_checkpoint.head:
        raise UnsafeError(
            f"{channel.half.name}/{number} ends at offset {end}, and the relay has read up to {half_checkpoint.head}: "
            "Kafka has lost records that it had acknowledged. The relay would treat new records below that offset as "
            "settled. Find out which records were lost, and see docs/operations/recovery.md, 'Lost checkpoints'"
        )
    if start > half_checkpoint.offset:
        half_checkpoint = _without_lost_halves(channel.half.name, number, half_checkpoint, start, skip_lost=skip_lost)
    return Checkpoints(half_checkpoint, op_checkpoint, verdict_checkpoint)


def _op_checkpoint(consumer: Consumer, place: TopicPartition, topic_id: str, *, deliver_again: bool) -> OpCheckpoint:
    """Return the checkpoint of an op or verdict partition; see `verify_checkpoints`."""
    try:
        return parse_op_checkpoint(_string(place), place.offset, topic_id, place.partition)
    except ProtocolError as error:
        offset = _begin_anew(error, place, place.partition, consumer, deliver_again=deliver_again)
        return OpCheckpoint(offset, offset)


def _without_lost_halves(
    topic: str, number: int, checkpoint: HalfCheckpoint, start: int, *, skip_lost: bool
) -> HalfCheckpoint:
    """Return a checkpoint that begins where the topic does, if an operator wants that (R38)."""
    kept, lost = checkpoint.without(start)
    if not skip_lost:
        raise UnsafeError(
            f"the checkpoint of {topic}/{number} is outside the topic: it is at offset {checkpoint.offset}, the topic "
            f"begins at {start}. {lost} unsettled halves are gone (retention, or the topic was truncated by "
            "hand); nothing was skipped. Before you skip them with "
            f"OUTBOX_SKIP_LOST={number}, list the committed transactions: docs/operations/recovery.md, 'Halves that "
            "are gone', step 1"
        )
    log.error("Lost halves skipped", topic=topic, partition=number, lost=lost, before=start)
    metrics.EVENTS.labels("half_gone").inc(lost)
    return kept


def lost_ops(consumer: Consumer, topic: str, number: int, checkpoint: OpCheckpoint) -> int:
    """Return how many ops were removed from the op or verdict topic that the checkpoint still needs."""
    start, _ = consumer.get_watermark_offsets(TopicPartition(topic, number), CHECKPOINT_SECONDS)
    return max(start - checkpoint.offset, 0)


def _with_ops_that_are_there(consumer: Consumer, topic: str, number: int, checkpoint: OpCheckpoint) -> OpCheckpoint:
    """Return an op checkpoint that does not begin before its topic: check-back replaces a lost op (R38)."""
    lost = lost_ops(consumer, topic, number, checkpoint)
    if not lost:
        return checkpoint
    start = checkpoint.offset + lost
    log.warning("Unread ops are gone, check-back decides", topic=topic, partition=number, lost=lost, before=start)
    metrics.EVENTS.labels("op_gone").inc(lost)
    return OpCheckpoint(start, max(checkpoint.head, start))


def _string(place: TopicPartition) -> str:
    if place.offset == OFFSET_INVALID:
        raise CheckpointError(f"Topic {place.topic} has no checkpoint of partition {place.partition}.")
    return place.metadata or ""


def _begin_anew(
    error: ProtocolError, place: TopicPartition, number: int, consumer: Consumer, *, deliver_again: bool
) -> int:
    """Where to begin in a partition whose checkpoint cannot be trusted, if an operator wants that."""
    if isinstance(error, NewerFormatError):
        raise UnsafeError(f"Partition {number}: {error}") from error
    if not deliver_again:
        raise UnsafeError(
            f"Partition {number}: {error} Find out who committed it. If duplicates are better than standing still, "
            "start one relay with distrusted_checkpoint = deliver_again."
        ) from error
    offset, _ = consumer.get_watermark_offsets(TopicPartition(place.topic, number), CHECKPOINT_SECONDS)
    log.warning(
        "Checkpoint not trusted, its whole topic is delivered again",
        topic=place.topic,
        partition=number,
        offset=offset,
        reason=str(error),
    )
    return offset


def verify_discards(admin: AdminClient, channel: ChannelDescription, number: int) -> None:
    """See that readers see all of a discard partition: only its owner writes there, and it has ended what was open."""
    topic = channel.channel.discard_topic
    end = end_offset(admin, topic, number, CHECKPOINT_SECONDS)
    stable = end_offset(admin, topic, number, CHECKPOINT_SECONDS, stable=True)
    if end is None or stable is None:
        raise KafkaUnreachable(f"{topic}/{number} does not answer")
    if stable < end:
        raise HeldBackError(
            f"a Kafka transaction without an end keeps {topic}/{number} back from offset {stable}: "
            "if this persists, see docs/operations/recovery.md"
        )
