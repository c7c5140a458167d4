"""The worker of a partition: how it reads, when it commits, and that it ends at the first error."""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, Message

import relay.delivery.topic_lookup
import relay.half.ledger.op_decisions
import relay.half.ledger.partition_progress
import relay.half.serving.commits
import relay.half.serving.intake
import relay.half.serving.worker
from outbox._kafka.topic_cache import TopicCache
from outbox._rules.topic_description import TopicDescription
from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from relay.delivery import sending
from relay.delivery.broker_watch import BrokerView, BrokerWatch
from relay.delivery.error_policy import Remedy, Undelivered
from relay.delivery.producer import DeliveryError
from relay.delivery.rules.outgoing import Finding
from relay.delivery.rules.topic_gate import Gate, GatePolicy
from relay.delivery.rules.volume import PATIENCE_MAX, BatchPolicy
from relay.delivery.sending import PAUSE_MS_MIN, BatchFeedback
from relay.delivery.topic_lookup import HangingTransactions, TopicLookup
from relay.delivery.transactional_delivery import TransactionalDelivery
from relay.half.kafka.half_reader import Decoder, DiscardReader, HalfReader, PartitionReaders
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.plain_halves import MOMENT_MS
from relay.half.serving.check_back import CheckBack, CheckSender
from relay.half.serving.commits import HEARTBEAT_SECONDS, PROGRESS_SECONDS, Commits
from relay.half.serving.worker import PartitionWorker
from relay.half.state.discard_index import to_manifest
from relay.half.state.message_transaction import Transaction
from relay.half.state.parking import ParkingPolicy
from tests.support.ledger_model import (
    CHANNEL,
    DESCRIPTION,
    OP_TOPIC_ID,
    PARTITION,
    SERVICE,
    TOPIC_ID,
    VERDICT_TOPIC_ID,
    entry,
    half,
    new_ledger,
    taken_ready,
    transaction_id,
)

WINDOW = 4
EARLY = 2
REAL = TopicDescription("real", OP_TOPIC_ID, 4, 3, {"max.message.bytes": "10000"})


@dataclass
class Clock:
    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (relay.half.serving.worker, relay.half.serving.commits, relay.delivery.topic_lookup, sending):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def delivery() -> Mock:
    return Mock(spec=TransactionalDelivery, rest_ms=0, timed_out=False)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(relay.half.ledger.partition_progress, "WINDOW", WINDOW)
    monkeypatch.setattr(relay.half.ledger.partition_progress, "FAR", WINDOW)
    monkeypatch.setattr(relay.half.ledger.op_decisions, "EARLY_OPS", EARLY)
    return new_ledger()


@pytest.fixture
def feedback() -> BatchFeedback:
    return BatchFeedback(BatchPolicy(messages=100), CHANNEL.discard_topic, request_seconds=5.0)


def _worker(ledger: Ledger, delivery: Mock, feedback: BatchFeedback) -> PartitionWorker:
    readers = PartitionReaders(
        Mock(spec=HalfReader, **{"read.return_value": [], "fetch.return_value": {}}),
        Mock(spec=DiscardReader, newest_append=0, **{"read_manifests.return_value": [], "skipped.return_value": {}}),
        Decoder(DESCRIPTION.discard.max_message_bytes, CHANNEL.verdict_topic),
    )
    topics = Mock(spec=TopicCache, **{"describe.return_value": {REAL.name: REAL}})
    gate = Gate(GatePolicy(), CHANNEL, PARTITION)
    brokers = Mock(spec=BrokerWatch, **{"view.return_value": BrokerView()})
    return PartitionWorker(
        ledger,
        readers,
        TopicLookup(ledger.deliveries.queue, gate, topics, HangingTransactions(), feedback.refusals, brokers),
        Commits(ledger, DESCRIPTION, delivery, Mock()),
        CheckBack(ledger, Mock(spec=CheckSender, **{"room.return_value": 100}), readers),
        feedback,
    )


@pytest.fixture
def worker(ledger: Ledger, delivery: Mock, feedback: BatchFeedback) -> PartitionWorker:
    """A worker whose thread does not run: a test calls what it would. One real topic exists."""
    return _worker(ledger, delivery, feedback)


@pytest.fixture
def make_worker(delivery: Mock, feedback: BatchFeedback) -> Callable[[], PartitionWorker]:
    """Makes workers one after the other, each from the same checkpoint, as after a failure."""
    return lambda: _worker(new_ledger(), delivery, feedback)


def halves(*numbers: int) -> list[Message]:
    """Half messages of one transaction each, whose number is the offset."""
    return [
        Message("outbox.half", PARTITION, found.offset, found.key, found.value, list(found.headers), None, (2, 1_000))
        for found in (half(number, number) for number in numbers)
    ]


def commits(first_offset: int, *numbers: int) -> list[Message]:
    return [_op(at, entry(OpKind.COMMIT, one, "0", one, one)) for at, one in enumerate(numbers, first_offset)]


def _op(offset: int, decision: OpEntry) -> Message:
    value, headers = encode_op([decision], OpSource.PRODUCER)
    return Message("outbox.op", PARTITION, offset, None, value, list(headers), None, (2, 1_000))


def to_ledger(ledger: Ledger) -> None:
    """Let all that was read go to the ledger, as after a moment."""
    ledger.take_plain(Mock(return_value=None), BatchPolicy(), 1_001 + MOMENT_MS)


def taken(ledger: Ledger) -> list[int]:
    ledger.take_plain(Mock(return_value=None), BatchPolicy(), 0)
    return [_number(transaction) for transaction in taken_ready(ledger, 100)]


def _number(transaction: Transaction) -> int:
    return int(transaction.id[-12:], 16)


def test_ops_are_read_on_while_the_half_partition_stands_still(worker: PartitionWorker, ledger: Ledger) -> None:
    """It stands at its window; the ops that free it lie behind more early ops than there is room for."""
    worker.arrivals.feed(halves(0, 1, 2, 3, 4, 5, 6), commits(0, 5, 6))
    worker._read()
    assert ledger.checkpoints().half.head == WINDOW
    assert ledger.decisions.is_full()
    worker.arrivals.feed([], commits(2, 4, 0, 1, 2, 3))
    worker._read()
    assert taken(ledger) == [0, 1, 2, 3]
    worker._read()
    assert taken(ledger) == [5, 6]
    assert len(ledger.pending) == 1, "its op was passed, the checker will say it"


def test_ops_for_halves_ahead_wait_while_halves_can_be_read(worker: PartitionWorker, ledger: Ledger) -> None:
    worker.arrivals.feed([], commits(0, 1, 2))
    worker._read()
    assert ledger.decisions.is_full()
    worker.arrivals.feed(halves(0), commits(2, 3, 0))
    worker._read()
    assert taken(ledger) == []
    assert ledger.counts["op_passed"] == 0
    worker.arrivals.feed(halves(1, 2, 3), [])
    worker._read()
    assert taken(ledger) == [1, 2]
    worker._read()
    assert taken(ledger) == [3, 0]


def test_readers_are_not_closed_under_a_thread_that_reads(worker: PartitionWorker, delivery: Mock) -> None:
    """No client of librdkafka is closed while a call is in it."""
    reading, answered = threading.Event(), threading.Event()
    halves_of, discards_of = worker._readers.halves, worker._readers.discards
    assert isinstance(halves_of, Mock)
    assert isinstance(discards_of, Mock)

    def read() -> list[Manifest]:
        reading.set()
        answered.wait()
        raise DeliveryError("stopped")

    discards_of.read_manifests.side_effect = read
    worker.start()
    reading.wait()
    worker.stop(0.01)
    delivery.close.assert_called_once_with()
    halves_of.close.assert_not_called()
    answered.set()
    worker.stop(60)
    halves_of.close.assert_called_once_with()
    discards_of.close.assert_called_once_with()


def test_it_ends_at_the_first_error(worker: PartitionWorker, delivery: Mock) -> None:
    """The ledger holds for settled what it has handed out: whoever went on would lose it (R17)."""
    error = DeliveryError("a Kafka transaction failed")

    def fail_once(*_: object) -> None:
        delivery.commit.side_effect = stop
        raise error

    def stop(*_: object) -> None:
        worker.arrivals.is_stopping = True

    delivery.commit.side_effect = fail_once
    worker.arrivals.feed(halves(0), commits(0, 0))
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
    records, (half_place, op_place, verdict_place), _ = delivery.commit.call_args.args
    assert records == []
    assert half_place.metadata == ledger.checkpoints().half.encode(TOPIC_ID, PARTITION)
    assert op_place.metadata == ledger.checkpoints().op.encode(OP_TOPIC_ID, PARTITION)
    assert verdict_place.metadata == ledger.checkpoints().verdict.encode(VERDICT_TOPIC_ID, PARTITION)


def test_progress_without_a_delivery_is_committed_soon(worker: PartitionWorker, delivery: Mock, clock: Clock) -> None:
    worker.arrivals.feed(halves(0), [])
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
    (parked,) = before.pending.by_id.values()
    ledger.restore_discards([to_manifest(parked, Finding(DiscardReason.UNDECIDED, ""), TOPIC_ID, PARTITION)])
    worker._lookup._hanging = Mock(spec=HangingTransactions, end=end, **{"take_stale.return_value": ()})
    worker.arrivals.feed(halves(1), [*commits(0, 1), _op(1, entry(OpKind.COMMIT, 7, "0", 0, 0))])
    worker._read()
    to_ledger(ledger)
    worker._hand_out._take_ready(BatchPolicy())
    assert {0} in asked


def test_no_more_is_asked_than_can_be_sent_and_the_rest_stays_due(
    worker: PartitionWorker, ledger: Ledger, clock: Clock
) -> None:
    worker.arrivals.feed(halves(0, 1, 2), [])
    worker._read()
    to_ledger(ledger)
    clock.now += 60
    ledger.overdue.ops_read_until(60_000)
    asked: list[CheckRequest] = []
    worker._check_back._checks = Mock(spec=CheckSender, ask=asked.extend)
    for room, expected in ((0, range(0)), (2, range(2)), (2, range(3)), (2, range(3))):
        worker._check_back._checks.room.return_value = room
        worker._ask_overdue()
        assert [int(request.transaction_id[-12:], 16) for request in asked] == list(expected)


def _topics(*names: str) -> Mock:
    found = {name: replace(REAL, name=name) for name in names}
    return Mock(spec=TopicCache, **{"describe.return_value": found, "describe_again.return_value": found})


def _to(topic: str, number: int) -> Message:
    control = HalfControl(topic, -1, transaction_id(number), 0, SERVICE, Truth.ROW)
    return Message("outbox.half", PARTITION, number, topic.encode(), b"value", list(control.encode()), None, (2, 1_000))


def test_refused_topic_waits_and_the_others_go_on(
    make_worker: Callable[[], PartitionWorker], delivery: Mock, clock: Clock
) -> None:
    """After the failure another worker begins at the same checkpoint; it leaves out the topic to blame."""
    failed = DeliveryError("failed", Remedy.ABORT, [Undelivered("sick", KafkaError(KafkaError.INVALID_RECORD))])
    records = [_to("sick", 0), _to("healthy", 1)]
    written: list[list[str]] = []

    def turn(worker: PartitionWorker, *error: DeliveryError) -> None:
        delivery.commit.side_effect = error or None
        worker._settle()
        written.append([record.topic for record in delivery.commit.call_args.args[0]])

    def start() -> PartitionWorker:
        worker = make_worker()
        worker._lookup._topics = _topics("sick", "healthy")
        worker.arrivals.feed(records, commits(0, 0, 1))
        worker._read()
        return worker

    with pytest.raises(DeliveryError):
        turn(start(), failed)
    worker = start()
    turn(worker)
    assert worker._ledger.deliveries.queue.held() == 1
    assert written.pop() == ["healthy"]
    clock.now += 2 * PAUSE_MS_MIN / 1_000 + 6
    turn(worker)
    assert written.pop() == ["sick"]
    assert not worker._feedback.refusals


def test_before_a_dead_letter_the_topic_is_looked_at_once_more(worker: PartitionWorker, delivery: Mock) -> None:
    """An administrator has raised the limit since the gate learned of it (R83)."""
    small = replace(REAL, settings={"max.message.bytes": "5"})
    worker._lookup._topics = topics = _topics(REAL.name)
    topics.describe.return_value = {REAL.name: small}
    worker.arrivals.feed(halves(0, 1), commits(0, 0, 1))
    worker._read()
    worker._settle()
    assert [record.topic for record in delivery.commit.call_args.args[0]] == [REAL.name] * 2
    topics.describe_again.assert_called_once_with({REAL.name})


def test_batch_after_a_time_out_is_half_as_large(make_worker: Callable[[], PartitionWorker], delivery: Mock) -> None:
    """The limit outlasts the worker, which ends with the failure."""
    numbers = range(WINDOW)
    delivery.commit.side_effect = DeliveryError(
        "failed", Remedy.ABORT, [Undelivered("real", KafkaError(KafkaError._MSG_TIMED_OUT))]
    )
    for expected in (4, 2, 1, 1):
        worker = make_worker()
        worker.arrivals.feed(halves(*numbers), commits(0, *numbers))
        worker._read()
        with pytest.raises(DeliveryError):
            worker._settle()
        assert len(delivery.commit.call_args.args[0]) == expected
    assert worker._feedback.volume.patience == PATIENCE_MAX


def test_worker_reads_many_at_once(worker: PartitionWorker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger allows few at a time, and more as soon as it has read these: others wait for each turn."""
    monkeypatch.setattr(relay.half.ledger.partition_progress, "FEW", 3)
    monkeypatch.setattr(relay.half.ledger.partition_progress, "FAR", 10_000)
    worker.arrivals.feed(halves(*range(100)), [])
    assert ledger.read_limit(0) == WINDOW
    worker._read()
    assert (ledger.progress.head(), worker.arrivals.sizes()) == (100, (0, 0, 0))


def test_worker_reads_deferred_halves_again(delivery: Mock, feedback: BatchFeedback) -> None:
    ledger = new_ledger(parking=ParkingPolicy(service_pending_max=2))
    worker = _worker(ledger, delivery, feedback)
    worker.arrivals.feed(halves(*range(5)), [])
    worker._read()
    to_ledger(ledger)
    assert (len(ledger.pending), len(ledger.deferred)) == (2, 3)
    reader = worker._readers.halves
    reader.read.side_effect = lambda offsets: [[half(at, at) for at in offsets]]  # type: ignore[attr-defined]  # a Mock
    worker.arrivals.feed([], commits(0, *range(5)))
    for _ in range(4):
        worker._read()
        worker._settle()
    assert (len(ledger.pending), len(ledger.deferred), ledger.progress.head()) == (0, 0, 5)
    written = [record for call in delivery.commit.call_args_list for record in call.args[0]]
    assert len(written) == 5
