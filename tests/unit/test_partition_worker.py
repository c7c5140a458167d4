"""The worker of a partition: how it reads, when it commits, and that it ends at the first error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from unittest.mock import Mock

import pytest
from confluent_kafka import Message

import relay.ledger
import relay.partition
import relay.unsettled
from outbox.channel import ChannelDescription
from outbox.cluster import TopicDescription
from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.topics import TopicCache
from relay.checks import CheckSender
from relay.delivery import Delivery
from relay.discard_reader import DiscardReader
from relay.discards import to_manifest
from relay.gate import Gate, GatePolicy
from relay.half_reader import HalfReader
from relay.ledger import Ledger
from relay.leftovers import Leftovers, NoLeftovers
from relay.pacing import BatchPolicy
from relay.partition import HEARTBEAT_SECONDS, PROGRESS_SECONDS, PartitionWorker
from relay.producing import DeliveryError
from relay.transaction import Finding, Transaction
from tests.unit.ledger_model import CHANNEL, OP_TOPIC_ID, PARTITION, TOPIC_ID, entry, half, new_ledger

WINDOW = 4
EARLY = 2
HALF = TopicDescription(CHANNEL.half_topic, TOPIC_ID, 4, 3, {})
OP = TopicDescription(CHANNEL.op_topic, OP_TOPIC_ID, 4, 3, {})
REAL = TopicDescription("real", OP_TOPIC_ID, 4, 3, {"max.message.bytes": "10000"})


@dataclass
class Clock:
    """Stands in for the module `time`."""

    now: float = 1_000.0

    def monotonic(self) -> float:
        """In s."""
        return self.now

    def monotonic_ns(self) -> int:
        """In ns."""
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The worker's clock."""
    made = Clock()
    monkeypatch.setattr(relay.partition, "time", made)
    return made


@pytest.fixture
def delivery() -> Mock:
    """Takes Kafka transactions."""
    return Mock(spec=Delivery, rest_ms=0)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger with little room."""
    monkeypatch.setattr(relay.unsettled, "WINDOW", WINDOW)
    monkeypatch.setattr(relay.unsettled, "FAR", WINDOW)
    monkeypatch.setattr(relay.ledger, "EARLY_OPS", EARLY)
    return new_ledger()


@pytest.fixture
def worker(ledger: Ledger, delivery: Mock, clock: Clock) -> PartitionWorker:
    """A worker whose thread does not run: a test calls what it would. One real topic exists."""
    return PartitionWorker(
        PARTITION,
        ChannelDescription(CHANNEL, HALF, OP, 4),
        ledger,
        delivery,
        Mock(spec=HalfReader, **{"read.return_value": [], "fetch.return_value": {}}),
        Mock(spec=DiscardReader, newest_append=0, **{"read_manifests.return_value": []}),
        NoLeftovers(),
        Mock(spec=TopicCache, **{"look_up.return_value": {REAL.name: REAL}}),
        Gate(GatePolicy(), CHANNEL, PARTITION),
        group_metadata=Mock(),
        checks=Mock(spec=CheckSender, **{"room.return_value": 100}),
        policy=BatchPolicy(messages=100),
        began=clock.now,
    )


def halves(*numbers: int) -> list[Message]:
    """Half messages of one transaction each, whose number is the offset."""
    return [
        Message("outbox.half", PARTITION, found.offset, found.key, found.value, list(found.headers), None, (2, 1_000))
        for found in (half(number, number) for number in numbers)
    ]


def commits(first_offset: int, *numbers: int) -> list[Message]:
    """Op records of one COMMIT each."""
    return [
        _op(offset, entry(OpKind.COMMIT, number, "0", number, number))
        for offset, number in enumerate(numbers, first_offset)
    ]


def _op(offset: int, decision: OpEntry) -> Message:
    value, headers = encode_op([decision], OpSource.PRODUCER)
    return Message("outbox.op", PARTITION, offset, None, value, list(headers), None, (2, 1_000))


def taken(ledger: Ledger) -> list[int]:
    return [_number(transaction) for transaction in ledger.take_ready(100)]


def _number(transaction: Transaction) -> int:
    return int(transaction.id[-12:], 16)


def test_ops_are_read_on_while_the_half_partition_stands_still(worker: PartitionWorker, ledger: Ledger) -> None:
    """It stands at its window; the ops that free it lie behind more early ops than there is room for."""
    worker.feed(halves(0, 1, 2, 3, 4, 5, 6), commits(0, 5, 6))
    worker._read()
    assert ledger.half_checkpoint().head == WINDOW
    assert ledger.early_ops_full()
    worker.feed([], commits(2, 4, 0, 1, 2, 3))
    worker._read()
    assert taken(ledger) == [0, 1, 2, 3]
    worker._read()
    assert taken(ledger) == [5, 6]
    assert ledger.pending() == 1, "its op was passed, the checker will say it"


def test_ops_for_halves_ahead_wait_while_halves_can_be_read(worker: PartitionWorker, ledger: Ledger) -> None:
    worker.feed([], commits(0, 1, 2))
    worker._read()
    assert ledger.early_ops_full()
    worker.feed(halves(0), commits(2, 3, 0))
    worker._read()
    assert taken(ledger) == []
    assert ledger.counts["op_passed"] == 0
    worker.feed(halves(1, 2, 3), [])
    worker._read()
    worker._read()
    assert taken(ledger) == [1, 2, 3, 0]


def test_it_ends_at_the_first_error(worker: PartitionWorker, delivery: Mock) -> None:
    """The ledger holds for settled what it has handed out: whoever went on would lose it (R17)."""
    error = DeliveryError("a Kafka transaction failed")

    def fail_once(*_: object) -> None:
        delivery.commit.side_effect = stop
        raise error

    def stop(*_: object) -> None:
        worker._stopping = True

    delivery.commit.side_effect = fail_once
    worker.feed(halves(0), commits(0, 0))
    worker.run()
    assert worker.failure is error
    assert delivery.commit.call_count == 1


def test_an_idle_partition_commits_hourly(
    ledger: Ledger, delivery: Mock, clock: Clock, worker: PartitionWorker
) -> None:
    """Or its offsets and its transactional id would expire (R22)."""
    clock.now += HEARTBEAT_SECONDS - 1
    worker._settle()
    assert delivery.commit.call_count == 0
    clock.now += 2
    worker._settle()
    worker._settle()
    assert delivery.commit.call_count == 1
    records, (half_place, op_place), _ = delivery.commit.call_args.args
    assert records == []
    assert half_place.metadata == ledger.half_checkpoint().encode(TOPIC_ID, PARTITION)
    assert op_place.metadata == ledger.op_checkpoint().encode(OP_TOPIC_ID, PARTITION)


def test_progress_without_a_delivery_is_committed_soon(worker: PartitionWorker, delivery: Mock, clock: Clock) -> None:
    worker.feed(halves(0), [])
    worker._read()
    worker._settle()
    assert delivery.commit.call_count == 0
    clock.now += PROGRESS_SECONDS
    worker._settle()
    worker._settle()
    assert delivery.commit.call_count == 1


def test_what_was_handed_out_is_owed_while_a_topic_is_looked_at(worker: PartitionWorker, ledger: Ledger) -> None:
    """A parked transaction leaves the index before its topic was ever looked at; another one has it looked at first."""
    asked: list[set[int]] = []

    def end(_topics: Mapping[str, int], in_hand: Collection[int] = frozenset()) -> Mapping[str, str]:
        asked.append(set(in_hand))
        return {}

    before = new_ledger()
    before.read_halves([half(0, 7)])
    (parked,) = before._pending.values()
    ledger.restore_discards([to_manifest(parked, Finding(DiscardReason.UNDECIDED, ""), TOPIC_ID, PARTITION)])
    worker._leftovers = Mock(spec=Leftovers, end=end, **{"take_stale.return_value": ()})
    worker.feed(halves(1), [*commits(0, 1), _op(1, entry(OpKind.COMMIT, 7, "0", 0, 0))])
    worker._read()
    worker._take_ready()
    assert {0} in asked


def test_no_more_is_asked_than_can_be_sent_and_the_rest_stays_due(
    worker: PartitionWorker, ledger: Ledger, clock: Clock
) -> None:
    worker.feed(halves(0, 1, 2), [])
    worker._read()
    clock.now += 60
    ledger.ops_read_until(60_000)
    asked: list[CheckRequest] = []
    worker._checks = Mock(spec=CheckSender, ask=asked.extend)
    for room, expected in ((0, range(0)), (2, range(2)), (2, range(3)), (2, range(3))):
        worker._checks.room.return_value = room
        worker._ask_overdue()
        assert [int(request.transaction_id[-12:], 16) for request in asked] == list(expected)
