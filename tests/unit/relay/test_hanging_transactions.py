"""What a Kafka transaction left open: whose it is, how it had ended, and when it is looked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from unittest.mock import Mock

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

import relay.recovery.hanging_transactions
from outbox.errors import ConfigurationError
from outbox.protocol.half import HalfControl, Truth, real_headers
from outbox.protocol.record import Record
from relay.delivery.transactional_delivery import TransactionalDelivery
from relay.half.kafka.half_reader import HalfReader
from relay.half.ledger.ledger import Ledger
from relay.half.serving.take_over import HalfAuthor, written_halves
from relay.half.state.half_records import Half
from relay.recovery.author import Found, backwards
from relay.recovery.hanging_transactions import NO_ANSWER
from relay.recovery.hanging_transactions import OwnHangingTransactions as Own
from tests.support.ledger_model import PARTITION, SERVICE, half, transaction_id

TOPIC = "orders"
SETTLED, OWED, AHEAD, LATER = 1, 2, 3, 4
OWN = b"%d/" % PARTITION
FAR: list[tuple[str, str | bytes | None]] = [("outbox-id", b"x/0"), ("outbox-origin", OWN + b"9" * 5_000)]
HEAD = 100
DEFERRED = 30
"""A half that was read and is not in the ledger: deferred, or a plain one that waits."""
ELSEWHERE = 40
"""A half whose real topic is another one."""


def _record(offset: int, number: int, half_offset: int, partition: int = PARTITION, topic: str = TOPIC) -> Message:
    control = HalfControl(topic, -1, transaction_id(number), 0, SERVICE, Truth.ROW)
    headers = real_headers(control, (), partition, half_offset)
    return Message(TOPIC, 0, offset, b"key", b"value", headers, None, (1, 1_000))


class Cluster:
    """One real topic with one partition: what lies there, and how far readers see; the halves of this channel."""

    def __init__(self) -> None:
        self.records: list[Message] = []
        self.stable: list[int] = []
        self.answers = True
        self.tells_ends = True
        self.readable = True
        self.looks = 0
        self.halves = {10: SETTLED, 20: OWED, HEAD: AHEAD, ELSEWHERE: SETTLED, DEFERRED: LATER}

    def ends(
        self, _admin: object, partitions: Mapping[str, int], _timeout: float, *, stable: bool = False
    ) -> dict[str, tuple[int, ...]]:
        """Stands in for `end_offsets`; each look at the stable offset takes the next one, others are empty."""
        if not partitions or not self.answers or not (stable or self.tells_ends):
            return {}
        empty = (0,) * (partitions[TOPIC] - 1)
        if not stable:
            self.looks += 1
            return {TOPIC: (len(self.records), *empty)}
        return {TOPIC: (self.stable.pop(0) if len(self.stable) > 1 else self.stable[0], *empty)}

    def find(self, offsets: Iterator[int]) -> dict[int, Half]:
        return {offset: self._half(offset) for offset in offsets if offset in self.halves}

    def _half(self, offset: int) -> Half:
        topic, id_ = "stock" if offset == ELSEWHERE else TOPIC, transaction_id(self.halves[offset])
        return Half(offset, 1_000, None, None, (), HalfControl(topic, -1, id_, 0, SERVICE, Truth.ROW))

    def reader(self, *_: object, isolation: str) -> Cluster:
        assert isolation == "read_uncommitted"
        return self

    def read_on(self, offset: int) -> list[Message]:
        if not self.readable:
            raise ConfigurationError("the right READ on topic orders is missing: grant it")
        return [record for record in self.records if (record.offset() or 0) >= offset]

    def close(self) -> None:
        """Done."""

    def stop(self) -> None:
        self.readable = False


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(relay.recovery.hanging_transactions, "end_offsets", made.ends)
    monkeypatch.setattr(relay.recovery.hanging_transactions, "OffsetReader", made.reader)
    monkeypatch.setattr(relay.recovery.hanging_transactions, "PAUSE_SECONDS", 0.0)
    return made


@pytest.fixture
def delivery() -> Mock:
    return Mock(spec=TransactionalDelivery, take_overs=1)


@pytest.fixture
def hanging(cluster: Cluster, delivery: Mock) -> Own:
    """Of a half partition that owes one transaction and is through with another one."""
    owed = Mock(all_halves=lambda: [half(20, OWED)])
    ledger = Mock(spec=Ledger, partition=PARTITION)
    ledger.find.side_effect = {transaction_id(OWED): owed}.get
    ledger.discards = Mock(**{"holds.return_value": False})
    ledger.progress = Mock(unsettled={20, DEFERRED}, **{"head.return_value": HEAD})
    halves = Mock(spec=HalfReader, find=cluster.find)
    made = Own({}, Mock(), "outbox-relay", HalfAuthor(ledger, halves), delivery)
    assert not made.take_stale()
    return made


def _aborted(delivery: Mock) -> list[int]:
    records = [call.args[0] for call in delivery.write_and_abort.call_args_list]
    return [int(dict(record.headers)["outbox-origin"].partition(b"/")[2]) for record in records]


@pytest.mark.parametrize(
    ("lie_there", "aborted"),
    [
        ([(OWED, 20)], [20]),
        ([(SETTLED, 10)], []),
        ([(AHEAD, HEAD)], [HEAD]),  # its half was not even read by this owner
        ([(LATER, DEFERRED)], [DEFERRED]),
        ([(SETTLED, 10), (OWED, 20)], [20]),
        ([(OWED, 20), (SETTLED, 10)], []),  # of all our transactions, only the last may hang
        ([(OWED, 20), (9, 10)], [20]),  # another channel's half has the same place
        ([(OWED, 20), (9, 31)], [20]),
        ([(9, 31)], []),
        ([(9, DEFERRED)], []),
        ([(OWED, 20), (SETTLED, ELSEWHERE)], [20]),  # somebody has forwarded a message of ours, headers and all
    ],
)
def test_the_last_own_record_tells_how_its_transaction_had_ended(
    cluster: Cluster, delivery: Mock, hanging: Own, lie_there: list[tuple[int, int]], aborted: list[int]
) -> None:
    cluster.records = [_record(offset, number, half) for offset, (number, half) in enumerate(lie_there)]
    cluster.stable = [0]
    assert hanging.end({TOPIC: 1}) == {}
    assert _aborted(delivery) == aborted
    assert hanging.end({TOPIC: 1}) == {}
    assert cluster.looks == 1, "what was looked at is not looked at again"


def test_what_others_wrote_is_passed_over(
    cluster: Cluster, delivery: Mock, hanging: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay.recovery.hanging_transactions, "READ_AT_ONCE", 2)
    foreign = [Message(TOPIC, 0, offset, b"key", b"value", [], None, (1, 1_000)) for offset in range(1, 5)]
    cluster.records = [_record(0, OWED, 20), *foreign, _record(5, OWED, 20, PARTITION + 1)]
    cluster.stable = [0]
    assert hanging.end({TOPIC: 1}) == {}
    assert _aborted(delivery) == [20]


def test_a_transaction_that_was_just_handed_out_is_owed(cluster: Cluster, delivery: Mock, hanging: Own) -> None:
    cluster.records, cluster.stable = [_record(0, SETTLED, 10)], [0]
    hanging.end({TOPIC: 1}, {10})
    assert _aborted(delivery) == [10]


def test_what_is_ended_in_a_moment_is_not_read(cluster: Cluster, delivery: Mock, hanging: Own) -> None:
    cluster.records, cluster.stable = [_record(0, OWED, 20)], [0, 0, 1]
    assert hanging.end({TOPIC: 1}) == {}
    assert _aborted(delivery) == []


def test_a_topic_that_does_not_answer_is_closed_until_it_does(cluster: Cluster, delivery: Mock, hanging: Own) -> None:
    cluster.answers = False
    assert hanging.end({TOPIC: 1}) == {TOPIC: NO_ANSWER}
    cluster.answers, cluster.records, cluster.stable = True, [_record(0, OWED, 20)], [0]
    assert hanging.end({TOPIC: 1}) == {}
    assert _aborted(delivery) == [20]


def test_an_unreadable_topic_is_closed_until_all_that_lay_there_is_ended(cluster: Cluster, hanging: Own) -> None:
    """What others write there meanwhile does not count: else it would never open."""
    cluster.records, cluster.stable, cluster.readable = [_record(0, OWED, 20)], [0], False
    assert hanging.end({TOPIC: 1}) == {TOPIC: "the right READ on topic orders is missing: grant it"}
    cluster.records += [_record(offset, 9, 30) for offset in range(1, 5)]
    cluster.stable = [1]
    assert hanging.end({TOPIC: 1}) == {}


def test_after_a_take_over_all_topics_are_looked_at_again(cluster: Cluster, delivery: Mock, hanging: Own) -> None:
    cluster.stable = [0]
    hanging.end({TOPIC: 1})
    assert not hanging.take_stale()
    delivery.take_overs += 1
    assert hanging.take_stale() == {TOPIC}
    assert not hanging.take_stale()
    cluster.records = [_record(0, OWED, 20)]
    hanging.end({TOPIC: 1})
    assert _aborted(delivery) == [20]


def test_a_topic_that_grew_is_looked_at_again(cluster: Cluster, delivery: Mock, hanging: Own) -> None:
    cluster.stable = [0]
    hanging.end({TOPIC: 1})
    cluster.records = [_record(0, OWED, 20)]
    hanging.end({TOPIC: 2})
    assert _aborted(delivery) == [20]


def test_a_topic_that_grew_is_closed_until_its_new_partitions_tell_their_ends(cluster: Cluster, hanging: Own) -> None:
    cluster.stable = [0]
    hanging.end({TOPIC: 1})
    cluster.tells_ends = False
    assert hanging.end({TOPIC: 2}) == {TOPIC: NO_ANSWER}
    cluster.tells_ends = True
    assert hanging.end({TOPIC: 2}) == {}


def test_who_is_asked_to_stop_reads_no_further(cluster: Cluster, delivery: Mock, hanging: Own) -> None:
    cluster.records, cluster.stable = [_record(0, OWED, 20)], [0]
    hanging.stop()
    assert hanging.end({TOPIC: 1}) != {}
    assert _aborted(delivery) == []


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 50))
def test_spans_run_backwards_and_leave_nothing_out(start: int, stop: int, size: int) -> None:
    spans = list(backwards(start, stop, size))
    assert [offset for span in reversed(spans) for offset in span] == list(range(start, stop))
    assert all(len(span) <= size for span in spans)


@pytest.mark.parametrize(
    "headers", [[], [("outbox-id", b"x/0")], [("outbox-id", b"x/0"), ("outbox-origin", OWN + b"?")], FAR]
)
def test_a_record_that_no_relay_wrote(headers: list[tuple[str, str | bytes | None]]) -> None:
    assert written_halves([Found(Record(TOPIC, 0, None, None, headers, 1_000), 0)], PARTITION) == []
