"""The ledger in a small world: whatever happens, each committed transaction is delivered once, whole and in order."""

import sys

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import relay.half.ledger.op_decisions
import relay.half.ledger.partition_progress
import relay.half.state.parking
from outbox.protocol import checkpoint
from relay.delivery.rules.topic_gate import GatePolicy
from relay.half.ledger.pending_transactions import KEEP, BodyPolicy
from relay.half.state.parking import DEFAULT, ParkingPolicy
from tests.support.examples import examples
from tests.support.ledger_model import FLOODED, IMPATIENT, PATIENT, SOON, TOPICS, Fate, Local, World

SMALL_ROOM = 3
ROOM = relay.half.ledger.op_decisions.EARLY_OPS
NONE = BodyPolicy(age=0, bytes=0)
WINDOWS = {"narrow": (6, 2, 10_000), "wide": (checkpoint.WINDOW, checkpoint.FEW, checkpoint.FAR)}
"""What a checkpoint can name: offsets in any mix, or runs, and offsets then."""


def choose_window(name: str) -> None:
    """Let the checkpoint name so much; a history is too short to fill what it really can."""
    for module in (relay.half.ledger.partition_progress, relay.half.state.parking):
        module.WINDOW, module.FEW, module.FAR = WINDOWS[name]  # type: ignore[attr-defined]  # constants of both


class _History(RuleBasedStateMachine):
    """Producers, a checker and relays that crash, in any order that Kafka allows."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @initialize(
        small_room=st.booleans(),
        parking=st.sampled_from([SOON, DEFAULT, FLOODED]),
        patience=st.sampled_from([PATIENT, IMPATIENT]),
        bodies=st.sampled_from([KEEP, NONE]),
        window=st.sampled_from(["wide", "narrow"]),
        batch_bytes=st.sampled_from([sys.maxsize, sys.maxsize, 1]),
        plain=st.booleans(),
    )
    def make(
        self,
        *,
        small_room: bool = False,
        parking: ParkingPolicy = DEFAULT,
        patience: GatePolicy = PATIENT,
        bodies: BodyPolicy = KEEP,
        window: str = "wide",
        batch_bytes: int = sys.maxsize,
        plain: bool = False,
    ) -> None:
        self.world = World(parking=parking, patience=patience, bodies=bodies, batch_bytes=batch_bytes, plain=plain)
        relay.half.ledger.op_decisions.EARLY_OPS = SMALL_ROOM if small_room else ROOM
        choose_window(window)

    def teardown(self) -> None:
        """In the end all is read, also what is wider than a window, asked and answered: nothing is left or lost."""
        choose_window("wide")
        try:
            self.world.drain()
        finally:
            relay.half.ledger.op_decisions.EARLY_OPS = ROOM

    def some(self, number: int, *fates: Fate) -> Local:
        found = [local for local in self.world.locals if local.fate in fates]
        return found[number % len(found)]

    def any_open(self) -> bool:
        return any(local.fate is Fate.OPEN for local in self.world.locals)

    def any_finished(self) -> bool:
        return any(local.fate is not Fate.OPEN and local.offsets for local in self.world.locals)

    @rule(
        size=st.integers(1, 4),
        key=st.sampled_from([b"a", b"a", b"b", None]),
        service=st.sampled_from(["orders", "orders", "stock"]),
        send=st.integers(0, 4),
    )
    def begin(self, size: int, key: bytes | None, service: str, send: int) -> None:
        local = self.world.begin(size, key, service)
        for _ in range(min(send, size)):
            self.world.send(local)

    @rule(count=st.integers(2, 12), every=st.integers(2, 4))
    def begin_many(self, count: int, every: int) -> None:
        """Transactions without order, of which some commit: what is left are many runs."""
        for number in range(count):
            local = self.world.begin(1, None)
            self.world.send(local)
            if number % every == 1:
                self.world.commit(local)
                self.world.send_op(local)

    @precondition(any_open)
    @rule(number=st.integers(0, 99), accident=st.sampled_from(["", "", "", "twice", "broken"]))
    def send(self, number: int, accident: str) -> None:
        local = self.some(number, Fate.OPEN)
        if len(local.offsets) < local.size:
            self.world.send(local, twice=accident == "twice", break_it=accident == "broken")

    @precondition(any_open)
    @rule(
        number=st.integers(0, 99), strike=st.sampled_from([set(), set(), {0}, {1}, {0, 1, 2, 3}]), ops=st.integers(0, 2)
    )
    def commit(self, number: int, strike: set[int], ops: int) -> None:
        local = self.some(number, Fate.OPEN)
        if local.offsets:
            self.world.commit(local, frozenset(strike))
            for _ in range(ops):
                self.world.send_op(local)

    @precondition(any_open)
    @rule(number=st.integers(0, 99), ops=st.integers(0, 2))
    def roll_back(self, number: int, ops: int) -> None:
        local = self.some(number, Fate.OPEN)
        self.world.roll_back(local)
        for _ in range(ops if local.offsets else 0):
            self.world.send_op(local)

    @precondition(any_finished)
    @rule(number=st.integers(0, 99))
    def an_op_comes_late_or_again(self, number: int) -> None:
        local = self.some(number, Fate.COMMITTED, Fate.ROLLED_BACK)
        if local.offsets:
            self.world.send_op(local)

    @precondition(any_finished)
    @rule(number=st.integers(0, 99))
    def a_straggler_comes(self, number: int) -> None:
        local = self.some(number, Fate.COMMITTED, Fate.ROLLED_BACK)
        if local.offsets:
            self.world.send(local)

    @precondition(lambda self: self.world.halves)
    @rule(number=st.integers(0, 99))
    def a_mirror_copies(self, number: int) -> None:
        self.world.copy(number % len(self.world.halves))

    @precondition(lambda self: self.world.inbox)
    @rule(count=st.integers(1, 5), again=st.booleans())
    def answer(self, count: int, *, again: bool) -> None:
        self.world.answer(*self.world.inbox[:count])
        if not again:
            del self.world.inbox[:count]

    @precondition(lambda self: self.world.inbox)
    @rule(count=st.integers(1, 5), again=st.booleans())
    def answer_unknown(self, count: int, *, again: bool) -> None:
        self.world.answer_unknown(*self.world.inbox[:count])
        if not again:
            del self.world.inbox[:count]

    @rule(there=st.booleans())
    def the_real_topic_comes_or_goes(self, *, there: bool) -> None:
        self.world.topics = dict(TOPICS) if there else {}

    @rule()
    def an_operator_wants_it_delivered(self) -> None:
        self.world.order_deliveries()

    @rule(count=st.sampled_from([1, 2, 5, 100]))
    def read_halves(self, count: int) -> None:
        self.world.read_halves(count)

    @rule(most=st.sampled_from([1, 2, 100]))
    def read_deferred(self, most: int) -> None:
        self.world.read_deferred(most)

    @rule(count=st.sampled_from([1, 2, 5, 100]))
    def read_ops(self, count: int) -> None:
        self.world.read_ops(count)

    @rule(count=st.sampled_from([1, 2, 100]))
    def read_verdicts(self, count: int) -> None:
        self.world.read_verdicts(count)

    @rule(messages=st.sampled_from([0, 1, 3, 1_000]))
    def deliver(self, messages: int) -> None:
        self.world.deliver(messages)

    @rule(messages=st.sampled_from([0, 1, 1_000]))
    def crash(self, messages: int) -> None:
        self.world.take(messages)

    @rule(passed=st.sampled_from([1, 3_000, 7_000, 40_000]), end=st.booleans())
    def ask(self, passed: int, *, end: bool) -> None:
        self.world.now += passed
        if end:
            self.world.see_op_end()
        self.world.ask()

    @rule(messages=st.sampled_from([0, 1, 1_000]), crashes=st.booleans())
    def everybody_waits(self, messages: int, *, crashes: bool) -> None:
        self.world.now += 10_000
        self.world.read_halves(100)
        self.world.read_deferred(1)
        self.world.read_ops(100)
        self.world.read_verdicts(100)
        self.world.see_op_end()
        self.world.deliver(messages)
        if crashes:
            self.world.restore()

    @invariant()
    def a_crash_would_lose_nothing_now(self) -> None:
        self.world.check_checkpoints()


TestHistory = _History.TestCase
TestHistory.settings = settings(
    max_examples=examples(500),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("resumed", [False, True], ids=["by the end", "by an operator before"])
def test_parked_copy_that_counts_is_delivered_after_refusal(*, resumed: bool) -> None:
    """Parked with two halves of one position, then decided, then refused by pre-flight, then resumed."""
    history = _History()
    history.make(parking=SOON, patience=IMPATIENT)
    history.the_real_topic_comes_or_goes(there=False)
    history.begin(service="orders", key=b"a", send=1, size=2)
    history.send(accident="twice", number=0)
    history.commit(number=0, ops=0, strike={0})
    history.everybody_waits(crashes=False, messages=1)
    history.an_op_comes_late_or_again(number=0)
    history.everybody_waits(crashes=False, messages=1)
    if resumed:
        history.an_operator_wants_it_delivered()
        history.the_real_topic_comes_or_goes(there=True)
        history.everybody_waits(crashes=False, messages=1)
    history.teardown()
    assert history.world.delivered


@pytest.mark.parametrize("copied", [False, True], ids=["alone", "while a copy is among the plain halves"])
def test_a_decision_that_an_op_holds_needs_no_verdict(*, copied: bool) -> None:
    """The producer's ROLLBACK is read after parking, and then the checker's: the second one may be passed."""
    history = _History()
    history.make(parking=SOON, plain=copied)
    history.begin(service="orders", key=b"a", send=1, size=1)
    history.everybody_waits(crashes=False, messages=1)
    history.ask(end=False, passed=1)
    history.roll_back(number=0, ops=1)
    if copied:
        history.a_mirror_copies(number=0)
        history.read_halves(count=1)
    history.read_ops(count=1)
    history.a_crash_would_lose_nothing_now()
    history.answer(again=False, count=1)
    history.read_verdicts(count=1)
    history.a_crash_would_lose_nothing_now()
    history.teardown()
