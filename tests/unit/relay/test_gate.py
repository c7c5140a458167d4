"""The gate: what a real topic cannot take yet waits in its order, what lasts is given up, and nobody else is held."""

from __future__ import annotations

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
from relay.batching.allow_list import EVERYTHING, AllowList
from relay.batching.batch import take_ready
from relay.batching.preflight import RealTopic, inspect
from relay.batching.topic_gate import KNOWN_MS, Gate, GatePolicy, Looked, TopicStatusChange
from relay.ledger.ledger import Ledger
from relay.state import parking, unsettled
from relay.state.half_records import Half
from relay.state.message_transaction import Transaction
from relay.state.parking import ParkingPolicy
from tests.support.ledger_model import (
    CHANNEL,
    GROUP,
    PARTITION,
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


class Relay:
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
        self.looks: list[set[str]] = []
        self.halves: list[Half] = []
        self.now = 0
        self.count = 0

    def commit(self, *targets: str, key: bytes | None = None, partition: int = -1, group: str = GROUP) -> int:
        """A transaction with a message to each of these topics, and its commit; its number."""
        number, first = self.count, self.ledger.half_checkpoint().head
        halves = []
        for position, topic in enumerate(targets):
            control = HalfControl(topic, partition, transaction_id(number), position, group, Truth.ROW)
            halves.append(Half(first + position, 1_000, key, b"value", tuple(control.encode()), control))
        self.halves += halves
        self.ledger.read_halves(halves)
        positions = f"0-{len(targets) - 1}" if len(targets) > 1 else "0"
        self.ledger.read_ops([op(number, entry(OpKind.COMMIT, number, positions, first, first + len(targets) - 1))])
        self.count += 1
        return number

    def turn(self, passed: int = 0) -> list[int]:
        """What goes in a turn of the relay, so many ms later."""
        return [number(transaction) for transaction in self.take(passed)]

    def take(self, passed: int = 0) -> Sequence[Transaction]:
        """As `turn`."""
        self.now += passed
        self.ledger.read_deferred([self.halves[offset] for offset in self.ledger.deferred_wanted(ALL)])
        again = self.gate.turn(self.now)
        if again and not self.answers:
            self.gate.postpone(again)
        elif again:
            self.look(again)
        self.ledger.release_crowding()
        ready = take_ready(self.ledger, self.gate, ALL, sys.maxsize)
        while unknown := self.gate.unknown():
            self.look(unknown)
            ready += take_ready(self.ledger, self.gate, ALL, sys.maxsize)
        return ready

    def look(self, names: set[str]) -> None:
        """Look at topics."""
        self.looks.append(names)
        found = {name: self.cluster[name] for name in names if name in self.cluster}
        release(self.ledger, self.gate.learn(names, found, waited_for(self.ledger, names)))

    def reason(self, transaction: Transaction) -> DiscardReason | None:
        """What pre-flight says of what was handed out."""
        found = inspect(transaction, self.gate.topics, CHANNEL, None, self.gate.allowed)
        return found.reason if found else None

    def given_up(self) -> list[tuple[int, DiscardReason | None]]:
        """Turn by turn, until somebody goes."""
        while not (taken := self.take(100)):
            assert self.now < 10 * POLICY.max_age, "nobody is ever given up"
        return [(number(transaction), self.reason(transaction)) for transaction in taken]


def number(transaction: Transaction) -> int:
    return int(transaction.id[-12:], 16)


# --- who goes -----------------------------------------------------------------------------------------------------


def test_what_its_topic_can_take_goes_at_once_and_is_looked_up_once() -> None:
    relay = Relay("orders", "stock")
    for _ in range(3):
        relay.commit("orders", "stock")
    assert relay.turn() == [0, 1, 2]
    relay.commit("stock")
    assert relay.turn() == [3]
    assert relay.looks == [{"orders"}, {"stock"}]


def test_what_is_known_of_a_topic_grows_old() -> None:
    relay = Relay("orders")
    relay.commit("orders")
    relay.turn()
    relay.commit("orders")
    assert relay.turn(KNOWN_MS) == [1]
    assert relay.looks == [{"orders"}, {"orders"}]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (None, TOPIC, DiscardReason.TOPIC_MISSING),
        (SMALL, GROWN, DiscardReason.PARTITION_OUT_OF_RANGE),
        (CLOSED, TOPIC, DiscardReason.NOT_AUTHORIZED),
        (HIDDEN, TOPIC, DiscardReason.NOT_AUTHORIZED),
    ],
)
def test_what_may_pass_is_waited_for_and_then_given_up(
    before: RealTopic | None, after: RealTopic, reason: DiscardReason
) -> None:
    relay = Relay("there")
    relay.cluster |= {"late": before} if before else {}
    relay.commit("late", partition=3)
    relay.commit("there", partition=3)
    assert relay.turn() == [1], "nobody else waits"
    assert relay.turn(POLICY.max_age // 2) == []
    assert relay.ledger.deliveries.queue.held() == 1
    assert relay.ledger.half_checkpoint().unsettled == runs_of([0]), "the checkpoint names it"
    relay.cluster["late"] = after
    assert relay.turn(2 * POLICY.pause_max) == [0]
    assert relay.ledger.deliveries.queue.held() == 0

    lasting = Relay()
    lasting.cluster |= {"late": before} if before else {}
    lasting.commit("late", partition=3)
    assert lasting.given_up() == [(0, reason)]
    assert lasting.ledger.deliveries.queue.held() == 0
    assert POLICY.max_age <= lasting.now <= POLICY.max_age + 2 * POLICY.pause_max


def test_a_topic_whose_broker_is_away_is_waited_for_as_long_as_there_is_room() -> None:
    """The limit of the group is 4 halves."""
    relay = Relay("there", parking=ParkingPolicy(group_pending_max=4))
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


def test_those_behind_it_in_its_order_wait_with_it_and_go_after_it() -> None:
    relay = Relay("there")
    relay.commit("late", key=b"a")
    relay.commit("there", key=b"a")
    relay.commit("there", key=b"b")
    relay.commit("there", key=b"a", group="stock")
    assert relay.turn() == [2, 3]
    relay.cluster["late"] = TOPIC
    assert relay.turn(2 * POLICY.pause) == [0, 1]


def test_once_it_is_given_up_those_behind_it_go() -> None:
    relay = Relay("there")
    relay.commit("late", key=b"a")
    relay.commit("there", key=b"a")
    assert relay.given_up() == [(0, DiscardReason.TOPIC_MISSING), (1, None)]


def test_a_transaction_waits_for_all_its_topics_one_after_the_other() -> None:
    relay = Relay("there")
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
def test_what_is_final_is_handed_out_at_once_to_be_discarded(target: str, reason: DiscardReason) -> None:
    """Also beside a message that could wait; and its topic is not even looked at."""
    relay = Relay("orders", allowed=AllowList({GROUP: ("late", "orders", "c*")}))
    relay.commit("late", target)
    (transaction,) = relay.take()
    assert relay.reason(transaction) is reason
    assert relay.looks == []


def test_what_waits_waits_on_when_its_body_is_let_go() -> None:
    relay = Relay(allowed=AllowList({GROUP: ("late",)}))
    relay.commit("late")
    relay.commit("late", "secret")
    pending = [relay.ledger.pending.by_id[transaction_id(number)] for number in range(2)]
    for transaction in pending:
        transaction.replace({half.offset: half.without_body() for half in transaction.all_halves()})
    assert relay.turn() == [1], "what is final is seen without a body, too"
    relay.cluster["late"] = TOPIC
    assert relay.turn(2 * POLICY.pause) == [0]


def test_a_half_that_does_not_count_is_not_waited_for() -> None:
    relay = Relay("there")
    control = HalfControl("late", -1, transaction_id(0), 1, GROUP, Truth.ROW)
    struck = Half(1, 1_000, None, b"value", tuple(control.encode()), control)
    there = HalfControl("there", -1, transaction_id(0), 0, GROUP, Truth.ROW)
    relay.ledger.read_halves([Half(0, 1_000, None, b"value", tuple(there.encode()), there), struck])
    relay.ledger.read_ops([op(0, entry(OpKind.COMMIT, 0, "0", 0, 0))])
    assert relay.turn() == [0]


# --- how often is looked --------------------------------------------------------------------------------------------


def test_the_looks_back_off_and_no_traffic_makes_them_more() -> None:
    relay = Relay("there")
    looked_at = []
    while relay.now < POLICY.max_age // 2:
        relay.commit("late")
        before = len(relay.looks)
        relay.turn(10)
        looked_at += [relay.now] * (len(relay.looks) - before)
    pauses = [after - before for before, after in pairwise(looked_at)]
    expected = [POLICY.pause_after(looks, f"late/{PARTITION}") for looks in range(1, len(looked_at))]
    assert all(0 <= pause - least < 10 for pause, least in zip(pauses, expected, strict=True))
    assert POLICY.pause_max * 0.9 <= expected[-1]
    assert relay.ledger.deliveries.queue.held() == relay.count


@given(looks=st.integers(1, 100), who=st.text())
def test_the_pauses_double_up_to_the_longest_and_are_spread_by_a_tenth(looks: int, who: str) -> None:
    exact = min(100 * 2 ** (looks - 1), 5_000)
    assert 0.9 * exact <= POLICY.pause_after(looks, who) <= 1.1 * exact


def test_many_topics_that_are_due_are_looked_at_together() -> None:
    relay = Relay()
    for topic in range(500):
        relay.commit(f"late{topic}")
    relay.turn()
    relay.turn(2 * POLICY.pause)
    assert relay.looks == [{f"late{topic}" for topic in range(500)}] * 2


def test_a_look_that_is_not_answered_says_nothing_and_the_wait_begins_anew() -> None:
    relay = Relay()
    relay.commit("late")
    relay.turn()
    relay.answers = False
    while relay.now < 2 * POLICY.max_age:
        assert relay.turn(1_000) == []
    relay.answers = True
    assert relay.turn(POLICY.max_age // 2) == []
    relay.cluster["late"] = TOPIC
    assert relay.turn(POLICY.max_age // 4) == [0]


def test_after_it_was_given_up_a_new_one_waits_for_the_next_look_only() -> None:
    """As long as there are new ones: a topic that is gone for good must not always hold a minute's traffic."""
    relay = Relay()
    relay.commit("gone")
    assert relay.given_up() == [(0, DiscardReason.TOPIC_MISSING)]
    relay.commit("gone")
    assert relay.turn() == []
    assert relay.turn(2 * POLICY.pause_max) == [1]
    relay.commit("gone")
    relay.cluster["gone"] = TOPIC
    assert relay.turn(2 * POLICY.pause_max) == [2]


def test_a_topic_that_nobody_waits_for_is_forgotten_and_waited_for_anew() -> None:
    relay = Relay()
    relay.commit("gone")
    relay.given_up()
    relay.turn(2 * POLICY.pause_max)
    relay.turn(2 * POLICY.pause_max)
    relay.commit("gone")
    assert relay.turn() == []
    assert relay.turn(POLICY.max_age // 2) == []


def test_a_look_in_the_middle_of_a_turn_makes_nothing_worse_for_what_was_admitted() -> None:
    relay = Relay("orders")
    relay.commit("orders")
    (admitted,) = relay.take()
    for worse in ({}, {"orders": CLOSED}, {"orders": SMALL}):
        assert relay.gate.refresh({"orders"}, worse, ()) == Looked(set(), set())
        assert relay.reason(admitted) is None
    relay.commit("late")
    relay.turn()
    assert relay.gate.refresh({"late", "new"}, {"late": TOPIC}, {"late"}) == Looked({"late"}, set())
    assert relay.gate.topics == {"orders": TOPIC, "late": TOPIC, "new": None}


# --- what happens to those that wait --------------------------------------------------------------------------------


def test_one_that_is_rolled_back_meanwhile_never_goes() -> None:
    relay = Relay("there")
    relay.commit("late", key=b"a")
    relay.commit("there", key=b"a")
    relay.turn()
    relay.ledger.read_ops([op(9, entry(OpKind.ROLLBACK, 0, "0", 0, 0), source=OpSource.CHECKER)])
    assert relay.turn() == [1]
    assert relay.turn(POLICY.max_age) == []
    assert relay.ledger.deliveries.queue.held() == 0
    relay.cluster["late"] = TOPIC
    assert relay.turn(POLICY.max_age) == []


def test_one_that_is_rolled_back_when_it_was_given_up_leaves_nothing_behind() -> None:
    relay = Relay()
    relay.commit("late")
    relay.turn()
    relay.ledger.deliveries.queue.release({"late"}, give_up=True)
    relay.ledger.read_ops([op(9, entry(OpKind.ROLLBACK, 0, "0", 0, 0), source=OpSource.CHECKER)])
    assert relay.turn() == []
    assert (relay.ledger.deliveries.queue.held(), len(relay.ledger.pending)) == (0, 0)


def test_one_whose_commit_comes_again_goes_once() -> None:
    relay = Relay()
    relay.commit("late")
    relay.turn()
    relay.ledger.read_ops([op(9, entry(OpKind.COMMIT, 0, "0", 0, 0), source=OpSource.CHECKER)])
    assert relay.turn() == []
    relay.cluster["late"] = TOPIC
    assert relay.turn(POLICY.max_age) == [0]
    assert relay.turn(POLICY.max_age) == []


def test_who_takes_room_that_others_need_waits_no_longer() -> None:
    """Before anybody is parked: the limit of the group is 3 halves."""
    relay = Relay("there", parking=ParkingPolicy(group_pending_max=3))
    for _ in range(3):
        relay.commit("late")
    relay.commit("late", group="stock")
    assert relay.turn() == []
    relay.commit("late")
    taken = relay.take()
    assert [(number(transaction), relay.reason(transaction)) for transaction in taken] == [
        (at, DiscardReason.TOPIC_MISSING) for at in (0, 1, 2)
    ]
    assert relay.ledger.take_parked(10_000, ALL) == [], "nobody is undecided"
    assert relay.turn() == []
    assert relay.ledger.deliveries.queue.held() == 2, "the other group, and the last one, are within their limit"


def test_one_that_was_given_up_goes_as_soon_as_the_checkpoint_can_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate says only once that it has given up: it is not asked while the answer would be of no use."""
    for module in (unsettled, parking):
        for name, value in (("WINDOW", 6), ("FEW", 2)):
            monkeypatch.setattr(module, name, value)
    relay = Relay("there")
    targets = ["there"] * 7 + ["late"] + ["there"] * 2
    controls = [
        HalfControl(topic, -1, transaction_id(number), 0, GROUP, Truth.ROW) for number, topic in enumerate(targets)
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


def test_what_happens_is_told_once() -> None:
    relay = Relay()
    relay.commit("late")
    relay.commit("late")
    relay.turn()
    relay.turn(POLICY.pause_max)
    assert relay.gate.take_news() == [TopicStatusChange("late", "topic late does not exist")]
    relay.cluster["late"] = TOPIC
    relay.turn(2 * POLICY.pause_max)
    assert relay.gate.take_news() == [TopicStatusChange("late", "")]
