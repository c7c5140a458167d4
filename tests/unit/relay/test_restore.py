"""Where a relay begins to read: at committed checkpoints, or nowhere."""

from collections.abc import Sequence
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

import relay.half.serving.restore
from outbox._service.exit_codes import UnsafeError
from outbox.errors import KafkaUnreachable
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from relay.half.serving.restore import read_checkpoints, verify_checkpoints, verify_discards
from tests.support.ledger_model import CHANNEL, DESCRIPTION, OP_TOPIC_ID, TOPIC_ID, VERDICT_TOPIC_ID


class Group:
    """Stands in for a consumer: what is committed in its group."""

    def __init__(self, **offsets: int | KafkaError) -> None:
        self._offsets = {f"{CHANNEL.name}.{topic}": offset for topic, offset in ({"verdict": 0} | offsets).items()}

    def committed(self, places: Sequence[TopicPartition], _timeout: float) -> list[TopicPartition]:
        return [self._at(place, self._offsets[place.topic]) for place in places]

    @staticmethod
    def _at(place: TopicPartition, found: int | KafkaError) -> TopicPartition:
        if isinstance(found, int):
            return TopicPartition(place.topic, place.partition, found)
        return _Failed(place.topic, place.partition, found)  # type: ignore[return-value]  # librdkafka alone sets an error


class _Failed:
    def __init__(self, topic: str, partition: int, error: KafkaError) -> None:
        self.topic, self.partition, self.offset, self.error = topic, partition, OFFSET_INVALID, error


def read(group: Group) -> list[tuple[str, int, int]]:
    found = read_checkpoints(group, DESCRIPTION, 2)  # type: ignore[arg-type]  # it has the one method that is called
    return [(place.topic, place.partition, place.offset) for place in found]


def test_it_begins_at_the_committed_offsets() -> None:
    assert read(Group(half=7, op=0, verdict=3)) == [
        (CHANNEL.half_topic, 2, 7),
        (CHANNEL.op_topic, 2, 0),
        (CHANNEL.verdict_topic, 2, 3),
    ]


@pytest.mark.parametrize(("half", "op"), [(OFFSET_INVALID, OFFSET_INVALID), (OFFSET_INVALID, 7), (7, OFFSET_INVALID)])
def test_a_partition_without_a_checkpoint_is_not_served(half: int, op: int) -> None:
    """Starting at a guess would lose or double (R22)."""
    with pytest.raises(UnsafeError, match="has no checkpoint"):
        read(Group(half=half, op=op))


def verified(verdict: TopicPartition) -> OpCheckpoint:
    half = TopicPartition(CHANNEL.half_topic, 2, 7, HalfCheckpoint(7, 7).encode(TOPIC_ID, 2))
    op = TopicPartition(CHANNEL.op_topic, 2, 0, OpCheckpoint(0, 0).encode(OP_TOPIC_ID, 2))
    consumer = Mock(**{"get_watermark_offsets.return_value": (0, 7)})
    return verify_checkpoints(consumer, DESCRIPTION, 2, [half, op, verdict]).verdict


def test_a_verdict_partition_without_a_checkpoint_begins_at_0() -> None:
    """A channel that was made before its verdict topic has none; a verdict that is read again changes nothing."""
    assert read(Group(half=7, op=0, verdict=OFFSET_INVALID))[2] == (CHANNEL.verdict_topic, 2, OFFSET_INVALID)
    assert verified(TopicPartition(CHANNEL.verdict_topic, 2, OFFSET_INVALID)) == OpCheckpoint(0, 0)


def test_a_verdict_checkpoint_counts_only_for_its_topic() -> None:
    checkpoint = OpCheckpoint(3, 9)
    place = (CHANNEL.verdict_topic, 2, 3)
    assert verified(TopicPartition(*place, checkpoint.encode(VERDICT_TOPIC_ID, 2))) == checkpoint
    with pytest.raises(UnsafeError, match="deleted and recreated"):
        verified(TopicPartition(*place, checkpoint.encode(OP_TOPIC_ID, 2)))


def test_offsets_that_cannot_be_told_now_are_no_missing_ones() -> None:
    with pytest.raises(KafkaException, match="COORDINATOR_NOT_AVAILABLE"):
        read(Group(half=7, op=KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)))


@pytest.mark.parametrize(
    ("end", "stable", "told"),
    [(9, 9, None), (9, 8, "back from offset 8"), (None, 9, "does not answer"), (9, None, "does not answer")],
)
def test_what_lies_in_the_discard_topic_must_be_told_whole(
    end: int | None, stable: int | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What readers do not see there would be taken for settled, and lost; of other partitions nothing is wanted."""
    both = Mock(side_effect=[end, stable])
    monkeypatch.setattr(relay.half.serving.restore, "end_offset", both)
    with pytest.raises(KafkaUnreachable, match=told) if told else nullcontext():
        verify_discards(Mock(), DESCRIPTION, 2)
    assert [call.args[1:3] for call in both.call_args_list] == [(CHANNEL.discard_topic, 2)] * 2
    assert [call.kwargs for call in both.call_args_list] == [{}, {"stable": True}]
