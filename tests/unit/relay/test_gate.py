"""The gate: what a real topic cannot take yet waits in its order, what lasts is given up, and nobody else is held."""

import sys
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol.checkpoint import runs_of
from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.op import OpKind, OpSource
from relay.delivery.rules import topic_gate
from relay.delivery.rules.allow_list import EVERYTHING, AllowList
from relay.delivery.rules.preflight import RealTopic, inspect
from relay.delivery.rules.topic_gate import METADATA_MAX_AGE_MS, Gate, GateChange, GatePolicy, TopicStatusChange
from relay.half.ledger import partition_progress
from relay.half.ledger.ledger import Ledger
from relay.half.serving.hand_out import take_ready
from relay.half.state import parking
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Transaction
from relay.half.state.parking import ParkingPolicy
from tests.support.ledger_model import (
    CHANNEL,
    PARTITION,
    SERVICE,
    entry,
    new_ledger,
    op,
    release,
    transaction_id,
    waited_for,
)

ALL = 10_000
POLICY = GatePolicy(max_age=60_000)
TOPIC = RealTopic(4, 10_000)
SMALL, GROWN = RealTopic(2, 10_000), RealTopic(8, 10_000)
AWAY = RealTopic(4, 10_000, unavailable="no leader")
CLOSED, HIDDEN = RealTopic(0, 0, lacks="WRITE on topic late"), RealTopic(0, 0, lacks="DESCRIBE on topic late")


class GatedLedger:
    """A ledger behind its gate, and a cluster; transactions have one message each, numbered like their halves."""

    def __init__(
        self,
        *topics: str,
        policy: GatePolicy = POLICY,
        allowed: AllowList = EVERYTHING,
        parking: ParkingPolicy | None = None,
    ) -> None:
        self.ledger: Ledger = new_ledger(parking=parking) if parking else new_ledger()
        self.gate = Gate(policy, CHANNEL, PARTITION, allowed)
        self.cluster: dict[str, RealTopic] = dict.fromkeys(topics, TOPIC)
        self.answers = True
        self.described: list[set[str]] = []
        self.halves: list[Half] = []
        self.now = 0
        self.count = 0

    def commit(self, *targets: str, key: bytes | None = None, partition: int = -1, service: str = SERVICE) -> int:
        """A transaction with a message to each of these topics, and its commit; its number."""
        number, first = self.count, self.ledger.checkpoints().half.head
        halves = []
        for position, topic in enumerate(targets):
            control = HalfControl(topic, partition, transaction_id(number), position, service, Truth.ROW)
            halves.append(Half(first + position, 1_000, key, b"value", tuple(control.encode()), control))
        self.halves += halves
        self.ledger.read_halves(halves)
        positions = f"0-{len(targets) - 1}" if len(targets) > 1 else "0"
        self.ledger.read_ops([op(number, entry(OpKind.COMMIT, number, positions, first, first + len(targets) - 1))])
        self.count += 1
        return number

    def turn(self, passed: int = 0) -> list[int]:
        return [number(transaction) for transaction in self.take(passed)]

    def take(self, passed: int = 0) -> Sequence[Transaction]:
        self.now += passed
        self.ledger.read_deferred([self.halves[offset] for offset in self.ledger.deferred_wanted(ALL)])
        again = self.gate.turn(self.now)
        if again and not self.answers:
            self.gate.postpone(again)
        elif again:
            self.describe(again)
        self.ledger.release_crowding()
        ready = take_ready(self.ledger, self.gate, ALL, sys.maxsize)
        while unknown := self.gate.unknown():
            self.describe(unknown)
            ready += take_ready(self.ledger, self.gate, ALL, sys.maxsize)
        return ready

    def describe(self, names: set[str]) -> None:
        self.described.append(names)
        found = {name: self.cluster[name] for name in names if name in self.cluster}
        release(self.ledger, self.gate.update(names, found, waited_for(self.ledger, names)))

    def reason(self, transaction: Transaction) -> DiscardReason | None:
        found = transaction.lacks() or inspect(transaction, self.gate.topics, CHANNEL, None, self.gate.allowed)
        return found.reason if found else None

    def given_up(self) -> list[tuple[int, DiscardReason | None]]:
        """Turn by turn, until somebody goes."""
        while not (taken := self.take(100)):
            assert self.now < 10 * POLICY.max_age, "nobody is ever given up"
        return [(number(transaction), self.reason(transaction)) for transaction in taken]


def number(transaction: Transaction) -> int:
    return int(transaction.id[-12:], 16)


def test_open_topic_delivers_at_once_after_one_describe() -> None:
    relay = GatedLedger("orders", "stock")
    for _ in range(3):
        relay.commit("orders", "stock")
    assert relay.turn() == [0, 1, 2]
    relay.commit("stock")
    assert relay.turn() == [3]
    assert relay.described == [{"orders", "stock"}]


def test_known_topic_expires() -> None:
    relay = GatedLedger("orders")
    relay.commit("orders")
    relay.turn()
    relay.commit("orders")
    assert relay.turn(1) == [1]
    relay.commit("orders")
    assert relay.turn(METADATA_MAX_AGE_MS) == [2]
    assert relay.described == [{"orders"}, {"orders"}]


def test_metadata_that_took_long_is_used_in_the_next_turn() -> None:
    """As of thousands of topics: otherwise they would be described again and again, and nothing be decided."""
    relay = GatedLedger("orders")
    relay.commit("orders")
    relay.turn()
    relay.commit("orders")
    assert relay.turn(METADATA_MAX_AGE_MS) == [1]
    assert relay.described == [{"orders"}]


def test_one_turn_describes_a_limited_number_of_closed_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_gate, "MOST_DESCRIBED", 2)
    relay = GatedLedger()
    relay.commit("a", "b")
    for topic in ("c", "d", "e"):
        relay.commit(topic)
    relay.turn()
    relay.turn(2 * POLICY.pause)
    assert len(relay.described[-1]) == 2
    relay.turn()
    assert len(relay.described[-1]) == 2
    assert not relay.described[-1] & relay.described[-2], "those that were described last come last"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (None, TOPIC, DiscardReason.TOPIC_MISSING),
        (SMALL, GROWN, DiscardReason.PARTITION_OUT_OF_RANGE),
        (CLOSED, TOPIC, DiscardReason.NOT_AUTHORIZED),
        (HIDDEN, TOPIC, DiscardReason.NOT_AUTHORIZED),
    ],
)
def test_closed_topic_waits_then_gives_up(before: RealTopic | None, after: RealTopic, reason: DiscardReason) -> None:
    relay = GatedLedger("there")
    relay.cluster |= {"late": before} if before else {}
    relay.commit("late", partition=3)
    relay.commit("there", partition=3)
    assert relay.turn() == [1], "nobody else waits"
    assert relay.turn(POLICY.max_age // 2) == []
    assert relay.ledger.deliveries.queue.held() == 1
    assert relay.ledger.checkpoints().half.unsettled == runs_of([0]), "the checkpoint names it"
    relay.cluster["late"] = after
    assert relay.turn(2 * POLICY.pause_max) == [0]
    assert relay.ledger.deliveries.queue.held() == 0

    lasting = GatedLedger()
    lasting.cluster |= {"late": before} if before else {}
    lasting.commit("late", partition=3)
    assert lasting.given_up() == [(0, reason)]
    assert lasting.ledger.deliveries.queue.held() == 0
    assert POLICY.max_age <= lasting.now <= POLICY.max_age + 2 * POLICY.pause_max


def test_topic_without_leader_waits_while_space_is_left() -> None:
    """The limit of the service is 4 halves."""
    relay = GatedLedger("there", parking=ParkingPolicy(service_pending_max=4))
    relay.cluster["late"] = AWAY
    for _ in range(3):
        relay.commit("late")
    relay.commit("there")
    assert relay.turn() == [3], "nobody else waits"
    for _ in range(5):
        assert relay.turn(POLICY.max_age) == []
    for _ in range(2):
        relay.commit("late")
    taken = relay.take()
    assert {relay.reason(transaction) for transaction in taken} == {DiscardReason.TOPIC_UNAVAILABLE}
    relay.cluster["late"] = TOPIC
    assert sorted(relay.turn(2 * POLICY.pause_max)) == [4, 5], "without a key, in any order"


def test_same_lane_waits_for_blocked_transaction() -> None:
    relay = GatedLedger("there")
    relay.commit("late", key=b"a")
    relay.commit("there", key=b"a")
    relay.commit("there", key=b"b")
    relay.commit("there", key=b"a", service="stock")
    assert relay.turn() == [2, 3]
    relay.cluster["late"] = TOPIC
    assert relay.turn(2 * POLICY.pause) == [0, 1]


def test_same_lane_goes_after_give_up() -> None:
    relay = GatedLedger("there")
    relay.commit("late", key=b"a")
    relay.commit("there", key=b"a")
    assert relay.given_up() == [(0, DiscardReason.TOPIC_MISSING), (1, None)]


def test_transaction_waits_for_each_topic_in_turn() -> None:
    relay = GatedLedger("there")
    relay.commit("there", "late", "later")
    assert relay.turn() == []
    relay.cluster["late"] = TOPIC
    assert relay.turn(POLICY.max_age) == []
    relay.cluster["later"] = TOPIC
    assert relay.turn(POLICY.pause_max) == [0]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("outbox.op", DiscardReason.INTERNAL_TOPIC),
        ("__consumer_offsets", DiscardReason.INTERNAL_TOPIC),
        ("secret", DiscardReason.FORBIDDEN),
        ("connect-offsets", DiscardReason.PLATFORM_TOPIC),
    ],
)
def test_final_reason_discards_at_once(target: str, reason: DiscardReason) -> None:
    """Also beside a message that could wait; and its topic is not even described."""
    relay = GatedLedger("orders", allowed=AllowList({SERVICE: ("late", "orders", "c*")}))
    relay.commit("late", target)
    (transaction,) = relay.take()
    assert relay.reason(transaction) is reason
    assert relay.described == []


def test_transaction_still_waits_after_its_body_is_freed() -> None:
    relay = GatedLedger(allowed=AllowList({SERVICE: ("late",)}))
    relay.commit("late")
    relay.commit("late", "secret")
    pending = [relay.ledger.pending.by_id[transaction_id(number)] for number in range(2)]
    for transaction in pending:
        transaction.replace({half.offset: half.without_body() for half in transaction.all_halves()})
    assert relay.turn() == [1], "what is final is seen without a body, too"
    relay.cluster["late"] = TOPIC
    assert relay.turn(2 * POLICY.pause) == [0]


def test_half_outside_positions_does_not_block() -> None:
    relay = GatedLedger("there")
    control = HalfControl("late", -1, transaction_id(0), 1, SERVICE, Truth.ROW)
    struck = Half(1, 1_000, None, b"value", tuple(control.encode()), control)
    there = HalfControl("there", -1, transaction_id(0), 0, SERVICE, Truth.ROW)
    relay.ledger.read_halves([Half(0, 1_000, None, b"value", tuple(there.encode()), there), struck])
    relay.ledger.read_ops([op(0, entry(OpKind.COMMIT, 0, "0", 0, 0))])
    assert relay.turn() == [0]


def test_describes_back_off_regardless_of_traffic() -> None:
    relay = GatedLedger("there")
    described_at = []
    while relay.now < POLICY.max_age // 2:
        relay.commit("late")
        before = len(relay.described)
        relay.turn(10)
        described_at += [relay.now] * (len(relay.described) - before)
    pauses = [after - before for before, after in pairwise(described_at)]
    expected = [POLICY.pause_after(describes, f"late/{PARTITION}") for describes in range(1, len(described_at))]
    assert all(0 <= pause - least < 10 for pause, least in zip(pauses, expected, strict=True))
    assert POLICY.pause_max * 0.9 <= expected[-1]
    assert relay.ledger.deliveries.queue.held() == relay.count


@given(describes=st.integers(1, 100), who=st.text())
def test_pauses_double_to_maximum_with_jitter(describes: int, who: str) -> None:
    exact = min(100 * 2 ** (describes - 1), 5_000)
    assert 0.9 * exact <= POLICY.pause_after(describes, who) <= 1.1 * exact


def test_due_topics_are_described_together() -> None:
    relay = GatedLedger()
    for topic in range(500):
        relay.commit(f"late{topic}")
    relay.turn()
    relay.turn(2 * POLICY.pause)
    assert relay.described == [{f"late{topic}" for topic in range(500)}] * 2


def test_unanswered_describe_restarts_the_wait() -> None:
    relay = GatedLedger()
    relay.commit("late")
    relay.turn()
    relay.answers = False
    while relay.now < 2 * POLICY.max_age:
        assert relay.turn(1_000) == []
    relay.answers = True
    assert relay.turn(POLICY.max_age // 2) == []
    relay.cluster["late"] = TOPIC
    assert relay.turn(POLICY.max_age // 4) == [0]


def test_after_give_up_next_waits_for_one_describe() -> None:
    """As long as there are new ones: a topic that is gone for good must not always hold a minute's traffic."""
    relay = GatedLedger()
    relay.commit("gone")
    assert relay.given_up() == [(0, DiscardReason.TOPIC_MISSING)]
    relay.commit("gone")
    assert relay.turn() == []
    assert relay.turn(2 * POLICY.pause_max) == [1]
    relay.commit("gone")
    relay.cluster["gone"] = TOPIC
    assert relay.turn(2 * POLICY.pause_max) == [2]


def test_topic_without_waiters_is_removed() -> None:
    relay = GatedLedger()
    relay.commit("gone")
    relay.given_up()
    relay.turn(2 * POLICY.pause_max)
    relay.turn(2 * POLICY.pause_max)
    relay.commit("gone")
    assert relay.turn() == []
    assert relay.turn(POLICY.max_age // 2) == []


def test_describe_during_turn_keeps_admitted_transactions() -> None:
    relay = GatedLedger("orders")
    relay.commit("orders")
    (admitted,) = relay.take()
    for worse in ({}, {"orders": CLOSED}, {"orders": SMALL}):
        assert relay.gate.update_better({"orders"}, worse, ()) == GateChange(set(), set())
        assert relay.reason(admitted) is None
    relay.commit("late")
    relay.turn()
    assert relay.gate.update_better({"late", "new"}, {"late": TOPIC}, {"late"}) == GateChange({"late"}, set())
    assert relay.gate.topics == {"orders": TOPIC, "late": TOPIC, "new": None}


def test_rollback_while_waiting_is_not_delivered() -> None:
    relay = GatedLedger("there")
    relay.commit("late", key=b"a")
    relay.commit("there", key=b"a")
    relay.turn()
    relay.ledger.read_ops([op(9, entry(OpKind.ROLLBACK, 0, "0", 0, 0), source=OpSource.CHECKER)])
    assert relay.turn() == [1]
    assert relay.turn(POLICY.max_age) == []
    assert relay.ledger.deliveries.queue.held() == 0
    relay.cluster["late"] = TOPIC
    assert relay.turn(POLICY.max_age) == []


def test_rollback_after_give_up_leaves_no_state() -> None:
    relay = GatedLedger()
    relay.commit("late")
    relay.turn()
    relay.ledger.deliveries.queue.release({"late"}, give_up=True)
    relay.ledger.read_ops([op(9, entry(OpKind.ROLLBACK, 0, "0", 0, 0), source=OpSource.CHECKER)])
    assert relay.turn() == []
    assert (relay.ledger.deliveries.queue.held(), len(relay.ledger.pending)) == (0, 0)


def test_transaction_that_exhausts_space_is_given_up() -> None:
    """Before anybody is parked: the limit of the service is 3 halves."""
    relay = GatedLedger("there", parking=ParkingPolicy(service_pending_max=3))
    for _ in range(3):
        relay.commit("late")
    relay.commit("late", service="stock")
    assert relay.turn() == []
    relay.commit("late")
    taken = relay.take()
    assert [(number(transaction), relay.reason(transaction)) for transaction in taken] == [
        (at, DiscardReason.TOPIC_MISSING) for at in (0, 1, 2)
    ]
    assert relay.ledger.take_parked(10_000, ALL) == [], "nobody is undecided"
    assert relay.turn() == []
    assert relay.ledger.deliveries.queue.held() == 2, "the other service, and the last one, are within their limit"


def test_given_up_goes_once_checkpoint_can_encode_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate says only once that it has given up: it is not asked while the answer would be of no use."""
    for module in (partition_progress, parking):
        for name, value in (("WINDOW", 6), ("FEW", 2)):
            monkeypatch.setattr(module, name, value)
    relay = GatedLedger("there")
    targets = ["there"] * 7 + ["late"] + ["there"] * 2
    controls = [
        HalfControl(topic, -1, transaction_id(number), 0, SERVICE, Truth.ROW) for number, topic in enumerate(targets)
    ]
    relay.ledger.read_halves(
        Half(offset, 1_000, None, b"value", tuple(control.encode()), control) for offset, control in enumerate(controls)
    )

    def decide(kind: OpKind, number: int) -> None:
        relay.ledger.read_ops([op(relay.count, entry(kind, number, "0", number, number))])
        relay.count += 1

    decide(OpKind.COMMIT, 7)
    assert (relay.turn(), relay.ledger.deliveries.queue.held()) == ([], 1)
    decide(OpKind.COMMIT, 4)
    assert relay.turn() == [4]
    assert relay.ledger.lacks_room()
    assert (relay.turn(), relay.ledger.deliveries.queue.held()) == ([], 0), "given up, but in the middle of a run"
    for number in range(4):
        decide(OpKind.ROLLBACK, number)
    assert relay.turn() == [7]


def test_events_are_reported_once() -> None:
    relay = GatedLedger()
    relay.commit("late")
    relay.commit("late")
    relay.turn()
    relay.turn(POLICY.pause_max)
    assert relay.gate.take_news() == [TopicStatusChange("late", "topic late does not exist")]
    relay.cluster["late"] = TOPIC
    relay.turn(2 * POLICY.pause_max)
    assert relay.gate.take_news() == [TopicStatusChange("late", "")]


def test_metadata_from_before_a_broker_was_lost_is_dropped() -> None:
    """Also that of topics which were described a moment ago (R80)."""
    gate = Gate(POLICY, CHANNEL, PARTITION)
    gate.turn(0)
    gate.update(["orders"], {"orders": TOPIC}, ())
    assert not gate.turn(1)
    assert "orders" in gate.topics
    assert not gate.turn(2, is_stale=True)
    assert "orders" not in gate.topics


def test_closed_topic_is_described_as_soon_as_the_brokers_have_changed() -> None:
    relay = GatedLedger("orders")
    relay.cluster["orders"] = AWAY
    relay.commit("orders")
    assert relay.turn() == []
    for _ in range(200):
        relay.turn(50)
    assert relay.gate.turn(relay.now + 1) == set()
    assert relay.gate.turn(relay.now + 2, is_stale=True) == {"orders"}
