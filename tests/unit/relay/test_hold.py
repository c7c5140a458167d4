"""Whether readers can have seen something of a hanging transaction on the partitions that it wrote to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from unittest.mock import Mock

import pytest
from confluent_kafka import Message, TopicPartition

import relay.half.serving.half_authors
import relay.recovery.hanging_checkpoint
from outbox.errors import KafkaUnreachable
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.half import HalfControl, Truth, real_headers
from relay.half.serving.half_authors import CheckpointAuthor
from relay.half.state.half_records import Half
from relay.recovery.hanging_checkpoint import Held, Hold
from tests.support.ledger_model import CHANNEL, DESCRIPTION, SERVICE, TOPIC_ID, transaction_id

TOPIC, MISSING = "orders", "gone"
NUMBER, OWED, SETTLED = 2, 9, 8
CHECKPOINT = HalfCheckpoint(7, 10, (range(7, 8), range(9, 10)))


class Cluster:
    """Stands in for a cluster: where a partition ends, how far readers see, and the record there."""

    def __init__(self) -> None:
        self.end: int | None = 5
        self.stable: int | None = 5
        self.record: Message | None = None

    def end_offset(self, _admin: object, _topic: str, _partition: int, *, stable: bool = False) -> int | None:
        """Stands in for `end_offset()`."""
        return self.stable if stable else self.end

    def reader(self, *_: object, isolation: str) -> Cluster:
        """Stands in for an `OffsetReader`."""
        assert isolation == "read_uncommitted"
        return self

    def read_at(self, offsets: Sequence[int]) -> Iterator[Message]:
        assert offsets == [self.stable]
        yield from [] if self.record is None else [self.record]

    def half_reader(self, *_: object) -> Cluster:
        """Stands in for a `HalfReader`."""
        return self

    def find(self, offsets: Collection[int]) -> dict[int, Half]:
        control = HalfControl(TOPIC, -1, transaction_id(1), 0, SERVICE, Truth.ROW)
        return {offset: Half(offset, 1_000, None, None, (), control) for offset in offsets}

    def close(self) -> None:
        """Done."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "end_offset", made.end_offset)
    module = relay.recovery.hanging_checkpoint
    monkeypatch.setattr(module, "OffsetReader", made.reader)
    monkeypatch.setattr(relay.half.serving.half_authors, "HalfReader", made.half_reader)
    monkeypatch.setattr(module, "describe_topics", lambda _admin, names: set(names) - {MISSING})
    return made


def _record(half_offset: int, number: int = 1, partition: int = NUMBER) -> Message:
    control = HalfControl(TOPIC, -1, transaction_id(number), 0, SERVICE, Truth.ROW)
    return Message(TOPIC, 0, 3, b"key", b"value", real_headers(control, (), partition, half_offset), None, (1, 1_000))


def _held(*places: tuple[str, int]) -> set[Held]:
    string = CHECKPOINT.encode(TOPIC_ID, NUMBER)
    place = TopicPartition(CHANNEL.half_topic, NUMBER, CHECKPOINT.offset, string)
    author = CheckpointAuthor({}, DESCRIPTION, NUMBER, place)
    return Hold({}, Mock(), CHANNEL, author).of(places)


def test_partition_that_readers_see_to_its_end_may_have_been_seen(cluster: Cluster) -> None:
    assert cluster.end == cluster.stable
    assert _held((TOPIC, 0)) == {Held.SEEN}


def test_topic_that_is_gone_may_have_been_seen(cluster: Cluster) -> None:
    cluster.stable = 3
    assert _held((MISSING, 0)) == {Held.SEEN}


@pytest.mark.parametrize(
    ("record", "held"),
    [
        (_record(OWED), Held.ITSELF),
        (_record(SETTLED), Held.BY_OTHERS),
        (_record(OWED, partition=NUMBER + 1), Held.BY_OTHERS),
        (_record(OWED, number=4), Held.BY_OTHERS),  # another channel's half has the same place
        (Message(TOPIC, 0, 3, b"key", b"value", [], None, (1, 1_000)), Held.BY_OTHERS),
        (None, Held.BY_OTHERS),
    ],
)
def test_first_record_that_readers_do_not_see_says_who_holds(
    cluster: Cluster, record: Message | None, held: Held
) -> None:
    cluster.stable, cluster.record = 3, record
    assert _held((TOPIC, 0)) == {held}


def test_discard_partition_is_held_by_nobody_else(cluster: Cluster) -> None:
    cluster.stable = 3
    assert _held((CHANNEL.discard_topic, NUMBER)) == {Held.ITSELF}


@pytest.mark.parametrize("missing", ["end", "stable"])
def test_partition_without_leader_is_waited_for(cluster: Cluster, missing: str) -> None:
    setattr(cluster, missing, None)
    with pytest.raises(KafkaUnreachable, match="no leader"):
        _held((TOPIC, 0))
