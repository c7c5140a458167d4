"""R22: a missing checkpoint stops the relay; no offset is guessed.

Offsets are gone after a week without a relay, or by a command of somebody's. A relay that takes that for a new channel
reads the half topic from its beginning, and asks about everything anew: all that was delivered and not yet purged is
delivered again. (One that began at the end would lose what waits.)
"""

from __future__ import annotations

from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from outbox._kafka.channel import ChannelDescription
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from relay.recovery.restore import read_checkpoints
from tests.mutants.runner.mutant import Harm, Mutant


def _read_or_begin(
    consumer: Consumer, channel: ChannelDescription, number: int, *, deliver_again: bool = False
) -> list[TopicPartition]:
    """The committed offsets; for lack of them, those of a new channel."""
    del deliver_again
    places = [TopicPartition(topic.name, number) for topic in (channel.half, channel.op, channel.verdict)]
    half, op, verdict = consumer.committed(places, 10.0)
    if OFFSET_INVALID not in {half.offset, op.offset}:
        return [half, op, verdict]
    return [
        TopicPartition(half.topic, number, 0, HalfCheckpoint(0, 0).encode(channel.half.id, number)),
        TopicPartition(op.topic, number, 0, OpCheckpoint(0, 0).encode(channel.op.id, number)),
        verdict,
    ]


MUTANT = Mutant(
    "R22",
    Harm.DOUBLED,
    read_checkpoints,
    _read_or_begin,
    ("tests/unit/relay/test_restore.py::test_a_partition_without_a_checkpoint_is_not_served",),
)
