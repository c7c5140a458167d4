"""How a hanging transaction was decided, which checkpoint is not gone on from, and whether readers saw something."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from unittest.mock import Mock

import pytest
from confluent_kafka import Message, TopicPartition

import relay.half.serving.take_over
import relay.recovery.hanging_checkpoint
from outbox._service.exit_codes import UnsafeError
from outbox.errors import KafkaUnreachable
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.half import HalfControl, Truth, real_headers
from relay.delivery.transactional_delivery import TransactionalDelivery
from relay.half.serving.take_over import CheckpointAuthor
from relay.half.state.half_records import Half
from relay.recovery.hanging_checkpoint import (
    TOPIC,
    Checkpointed,
    Held,
    Hold,
    Word,
    decided,
    end_hanging,
    refuse_undone_end,
)
from relay.recovery.transaction_state import (
    Decision,
    Outcome,
    TransactionalIdState,
    UndecidedError,
    key_of,
    parse_state,
    partition_of,
)
from tests.support.ledger_model import CHANNEL, DESCRIPTION, SERVICE, TOPIC_ID, transaction_id

ID = CHANNEL.transactional_id(2)
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
OLD, NEW = 7, 8
"""Producer ids."""
CHECKPOINT = HalfCheckpoint(7, 10, (range(7, 8), range(9, 10)))
"""It owes halves 7 and 9, and all from 10 on."""
HALF, NOTE = (CHANNEL.half_topic, 2), (CHANNEL.discard_topic, 2)
OWNER = Checkpointed.half_partition(CHANNEL, 2)

REAL = "orders"
PLAIN = struct.pack(">ih6siiih18sii", 2, 6, b"orders", 2, 0, 2, 18, b"__consumer_offsets", 1, 7)
ELSEWHERE = struct.pack(">ih6sii", 1, 6, b"orders", 1, 0)
PLACES = ((REAL, 0), (REAL, 2), ("__consumer_offsets", 7))


def _flexible() -> bytes:
    """Places as version 1 has them: lengths are varints of one more, and each structure ends with its tags."""
    orders = b"\x07orders" + b"\x03" + struct.pack(">ii", 0, 2) + b"\x00"
    offsets = b"\x13__consumer_offsets" + b"\x02" + struct.pack(">i", 7) + b"\x00"
    return b"\x03" + orders + offsets


def _value(status: int, producer_id: int = OLD, version: int = 0, places: bytes | None = None) -> bytes:
    found = (_flexible() if version else PLAIN) if places is None else places
    if status in {COMPLETE_COMMIT, COMPLETE_ABORT, EMPTY}:
        found = b"\x01" if version else bytes(4)
    return struct.pack(">hqhib", version, producer_id, 3, 15_000, status) + found + struct.pack(">qq", 1, 2)


class Coordinator:
    """Stands in for the reader of `__transaction_state`: its records, by offset."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None]] = []
        self.partition = partition_of(ID, 50)

    def write(self, *states: int | bytes | None, of: str = ID) -> None:
        """Write states of a transactional id: a status, a whole value, or a tombstone."""
        self.records += [(of, _value(state) if isinstance(state, int) else state) for state in states]

    def reader(self, _kafka: object, topic: str, partition: int, _group: str, isolation: str) -> Coordinator:
        assert (topic, partition, isolation) == (TOPIC, self.partition, "read_uncommitted")
        return self

    def bounds(self) -> tuple[int, int]:
        return 5, 5 + len(self.records)

    def read_on(self, offset: int) -> Iterator[Message]:
        for number, (id_, value) in enumerate(self.records, 5):
            if number >= offset:
                yield Message(TOPIC, 0, number, key_of(id_), value, None, None, (1, 1_000))

    def close(self) -> None:
        """Done."""


class Group:
    def __init__(self) -> None:
        self.offsets = {HALF: TopicPartition(*HALF, 7, CHECKPOINT.encode(TOPIC_ID, 2))}
        self.takes_notes = True
        self.deliveries: dict[str, Mock] = {}
        """The producers, by transactional id."""

    def delivery(self, _kafka: object, transactional_id: str) -> Mock:
        self.deliveries[transactional_id] = Mock(spec=TransactionalDelivery, commit=Mock(side_effect=self.commit))
        return self.deliveries[transactional_id]

    def read(
        self, _kafka: object, _group: str, places: list[tuple[str, int]], *, stable: bool
    ) -> dict[tuple[str, int], TopicPartition]:
        assert not stable
        return {place: self.offsets[place] for place in places if place in self.offsets}

    def commit(self, _records: object, offsets: list[TopicPartition], _metadata: bytes) -> None:
        if self.takes_notes:
            self.offsets |= {(place.topic, place.partition): place for place in offsets}


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    """The coordinator's log; a span of it is three records."""
    made = Coordinator()
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "OffsetReader", made.reader)
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "READ_AT_ONCE", 3)
    monkeypatch.setattr(
        relay.recovery.hanging_checkpoint, "describe_topics", lambda _admin, _names: {TOPIC: Mock(partitions=50)}
    )
    return made


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "committed_checkpoints", made.read)
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "_group_metadata", lambda _kafka, _group: b"of no member")
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "NOTE_SECONDS", 0.0)
    monkeypatch.setattr(Hold, "of", lambda _self, _places: {Held.SEEN})
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "TransactionalDelivery", made.delivery)
    return made


def _decided() -> Decision:
    return decided({}, Mock(), OWNER)


def _end(word: Word = "decide") -> None:
    end_hanging({}, Mock(), CHANNEL, OWNER, partial(CheckpointAuthor, {}, DESCRIPTION, 2), word)


def _ended(group: Group) -> bool:
    (call,) = group.deliveries[ID].end_hanging.call_args_list
    is_committed: bool = call.kwargs["is_committed"]
    return is_committed


def test_partition_of_transactional_id_is_that_of_kafka() -> None:
    """As `Utils.abs(transactionalId.hashCode()) % 50` in Java says."""
    assert [partition_of(id_, 50) for id_ in ("", "a", "outbox-relay-0", "polygenelubricants")] == [0, 47, 4, 0]


@pytest.mark.parametrize("version", [0, 1])
def test_state_of_each_known_version_is_read(version: int) -> None:
    assert parse_state(_value(PREPARE_ABORT, NEW, version)) == TransactionalIdState(NEW, Outcome.ABORTED, PLACES)
    assert parse_state(_value(PREPARE_COMMIT, NEW, version)) == TransactionalIdState(NEW, Outcome.COMMITTED, PLACES)
    assert parse_state(_value(COMPLETE_COMMIT, OLD, version)) == TransactionalIdState(OLD, Outcome.COMMITTED)
    assert parse_state(_value(ONGOING, OLD, version)) == TransactionalIdState(OLD)


@pytest.mark.parametrize(
    "value", [b"", _value(PREPARE_COMMIT)[:16], _value(PREPARE_COMMIT)[:40], _value(PREPARE_COMMIT, version=2)]
)
def test_state_of_unknown_form_is_refused(value: bytes) -> None:
    with pytest.raises(UndecidedError, match="cannot be read"):
        parse_state(value)


@pytest.mark.parametrize(
    ("states", "decision"),
    [
        ([EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT], Decision(Outcome.COMMITTED, PLACES)),
        ([EMPTY, PREPARE_ABORT, COMPLETE_ABORT, EMPTY, EMPTY, EMPTY, EMPTY], Decision(Outcome.ABORTED, PLACES)),
        ([PREPARE_ABORT, COMPLETE_ABORT, ONGOING, PREPARE_COMMIT, EMPTY], Decision(Outcome.COMMITTED, PLACES)),
        ([PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING, PREPARE_ABORT, EMPTY], Decision(Outcome.ABORTED, PLACES)),
        # Aborted before its offsets: what hangs is the commit before it.
        (
            [PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING, _value(PREPARE_ABORT, places=ELSEWHERE), COMPLETE_ABORT],
            Decision(Outcome.COMMITTED, PLACES),
        ),
        # Compaction has left no more.
        ([COMPLETE_COMMIT, EMPTY], Decision(Outcome.COMMITTED, None)),
        ([EMPTY, COMPLETE_COMMIT, EMPTY], Decision(Outcome.COMMITTED, None)),
        ([PREPARE_ABORT, COMPLETE_COMMIT, EMPTY], Decision(Outcome.COMMITTED, None)),
    ],
)
def test_last_decision_of_the_coordinator_counts(
    coordinator: Coordinator, states: list[int | bytes], decision: Decision
) -> None:
    coordinator.write(*states)
    coordinator.write(EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, of="outbox-relay-22")
    assert _decided() == decision


@pytest.mark.parametrize(
    "states",
    [
        [],
        [EMPTY, EMPTY],
        [PREPARE_COMMIT, None, EMPTY],  # the transactional id expired
        [PREPARE_COMMIT, COMPLETE_COMMIT, _value(EMPTY, NEW)],
        [PREPARE_COMMIT, _value(EMPTY, version=2)],
    ],
)
def test_decision_that_is_not_written_is_not_guessed(
    coordinator: Coordinator, states: list[int | bytes | None]
) -> None:
    coordinator.write(*states)
    with pytest.raises(UndecidedError):
        _decided()


def test_aborted_transaction_is_ended_as_aborted(coordinator: Coordinator, group: Group) -> None:
    coordinator.write(PREPARE_ABORT, EMPTY)
    _end()
    assert not _ended(group)
    assert NOTE not in group.offsets
    group.deliveries[ID].close.assert_called_once_with()


def test_committed_transaction_is_ended_after_a_note(coordinator: Coordinator, group: Group) -> None:
    """If the end is cut off, the checkpoint before the hanging one is not gone on from."""
    coordinator.write(PREPARE_COMMIT, EMPTY)
    _end()
    assert _ended(group)
    with pytest.raises(UnsafeError, match="committed and is lost"):
        refuse_undone_end({}, OWNER, group.offsets[HALF], "decide")
    refuse_undone_end({}, OWNER, group.offsets[HALF], "abort")
    refuse_undone_end({}, OWNER, TopicPartition(*HALF, 9, "2;h;of a later one"), "decide")


@pytest.mark.parametrize(
    ("held", "is_committed"),
    [
        ({Held.ITSELF}, False),  # nobody has seen anything of it
        (set(), False),
        ({Held.ITSELF, Held.SEEN}, True),
        ({Held.SEEN, Held.BY_OTHERS}, True),
        ({Held.ITSELF, Held.BY_OTHERS}, True),
    ],
)
def test_commit_that_nobody_has_seen_is_aborted(
    held: set[Held], coordinator: Coordinator, group: Group, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    """Its messages are delivered again; what hangs of a commit on real topics, a later abort could lose."""
    of = Mock(return_value=held)
    monkeypatch.setattr(Hold, "of", of)
    coordinator.write(PREPARE_COMMIT, COMPLETE_COMMIT, EMPTY)
    _end()
    assert _ended(group) is is_committed
    of.assert_called_once_with([(REAL, 0), (REAL, 2)])


def test_commit_whose_places_are_forgotten_is_committed(coordinator: Coordinator, group: Group) -> None:
    coordinator.write(COMPLETE_COMMIT, EMPTY)
    _end()
    assert _ended(group)


def test_without_its_note_a_commit_is_not_ended(coordinator: Coordinator, group: Group) -> None:
    coordinator.write(PREPARE_COMMIT, EMPTY)
    group.takes_notes = False
    with pytest.raises(KafkaUnreachable, match="not committed yet"):
        _end()
    group.deliveries[ID].end_hanging.assert_not_called()
    group.deliveries[ID].close.assert_called_once_with()


def test_cut_off_end_that_hangs_is_committed_again(coordinator: Coordinator, group: Group) -> None:
    """The coordinator aborted it; what it was to end had been committed."""
    coordinator.write(PREPARE_COMMIT, EMPTY)
    _end()
    group.deliveries.clear()
    coordinator.write(ONGOING, PREPARE_ABORT, EMPTY)
    _end()
    assert _ended(group)
    assert group.deliveries.keys() == {ID}


@pytest.mark.parametrize(("word", "is_committed"), [("abort", False), ("commit", True)])
def test_word_of_an_operator_decides(word: Word, coordinator: Coordinator, group: Group, *, is_committed: bool) -> None:
    coordinator.write(EMPTY)
    _end(word)
    assert _ended(group) is is_committed


def test_half_partition_without_checkpoint_is_left_alone(coordinator: Coordinator, group: Group) -> None:
    coordinator.write(PREPARE_COMMIT, EMPTY)
    group.offsets.clear()
    with pytest.raises(UndecidedError, match="no checkpoint older than"):
        _end()
    group.deliveries[ID].end_hanging.assert_not_called()


def test_source_without_progress_is_ended_as_decided(coordinator: Coordinator, group: Group) -> None:
    """The first transaction of a table source commits its progress; it writes to no topic of the channel."""
    owner = Checkpointed.table_source(CHANNEL, "shop")
    coordinator.partition = partition_of(owner.transactional_id, 50)
    coordinator.write(PREPARE_COMMIT, EMPTY, of=owner.transactional_id)
    end_hanging({}, Mock(), CHANNEL, owner, lambda _progress: Mock(), "decide")
    (call,) = group.deliveries[owner.transactional_id].end_hanging.call_args_list
    assert call.args[0] is None
    assert call.kwargs["is_committed"]
    with pytest.raises(UnsafeError, match=r"table source shop at offset none .* committed and is lost"):
        refuse_undone_end({}, owner, None, "decide")
    refuse_undone_end({}, owner, TopicPartition(*owner.place, 4, "incarnation"), "decide")
    assert group.offsets.keys() >= {owner.note}


MISSING = "gone"
NUMBER, OWED, SETTLED = 2, 9, 8


class Cluster:
    """Stands in for a cluster: where a partition ends, how far readers see, and the record there."""

    def __init__(self) -> None:
        self.end: int | None = 5
        self.stable: int | None = 5
        self.record: Message | None = None

    def end_offset(self, _admin: object, _topic: str, _partition: int, *, stable: bool = False) -> int | None:
        return self.stable if stable else self.end

    def reader(self, *_: object, isolation: str) -> Cluster:
        assert isolation == "read_uncommitted"
        return self

    def read_at(self, offsets: Sequence[int]) -> Iterator[Message]:
        assert offsets == [self.stable]
        yield from [] if self.record is None else [self.record]

    def half_reader(self, *_: object) -> Cluster:
        return self

    def find(self, offsets: Collection[int]) -> dict[int, Half]:
        control = HalfControl(REAL, -1, transaction_id(1), 0, SERVICE, Truth.ROW)
        return {offset: Half(offset, 1_000, None, None, (), control) for offset in offsets}

    def close(self) -> None:
        """Done."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "end_offset", made.end_offset)
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "OffsetReader", made.reader)
    monkeypatch.setattr(relay.half.serving.take_over, "HalfReader", made.half_reader)
    monkeypatch.setattr(relay.recovery.hanging_checkpoint, "describe_topics", lambda _, names: set(names) - {MISSING})
    return made


def _record(half_offset: int, number: int = 1, partition: int = NUMBER) -> Message:
    control = HalfControl(REAL, -1, transaction_id(number), 0, SERVICE, Truth.ROW)
    return Message(REAL, 0, 3, b"key", b"value", real_headers(control, (), partition, half_offset), None, (1, 1_000))


def _held(*places: tuple[str, int]) -> set[Held]:
    string = CHECKPOINT.encode(TOPIC_ID, NUMBER)
    place = TopicPartition(CHANNEL.half_topic, NUMBER, CHECKPOINT.offset, string)
    author = CheckpointAuthor({}, DESCRIPTION, NUMBER, place)
    return Hold({}, Mock(), CHANNEL, author).of(places)


def test_partition_that_readers_see_to_its_end_may_have_been_seen(cluster: Cluster) -> None:
    assert cluster.end == cluster.stable
    assert _held((REAL, 0)) == {Held.SEEN}


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
        (Message(REAL, 0, 3, b"key", b"value", [], None, (1, 1_000)), Held.BY_OTHERS),
        (None, Held.BY_OTHERS),
    ],
)
def test_first_record_that_readers_miss_says_who_holds(cluster: Cluster, record: Message | None, held: Held) -> None:
    cluster.stable, cluster.record = 3, record
    assert _held((REAL, 0)) == {held}


def test_discard_partition_is_held_by_nobody_else(cluster: Cluster) -> None:
    cluster.stable = 3
    assert _held((CHANNEL.discard_topic, NUMBER)) == {Held.ITSELF}


@pytest.mark.parametrize("missing", ["end", "stable"])
def test_partition_without_leader_is_waited_for(cluster: Cluster, missing: str) -> None:
    setattr(cluster, missing, None)
    with pytest.raises(KafkaUnreachable, match="no leader"):
        _held((REAL, 0))
