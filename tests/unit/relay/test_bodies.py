"""Bodies of pending halves: let go when they are old or many, wanted again when they are needed."""

import gc
import weakref
from collections.abc import Iterable, Iterator

import pytest

from outbox.protocol.half import Truth
from outbox.protocol.op import OpKind
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.pending_transactions import BodyPolicy
from relay.half.state.check_schedule import first_half
from relay.half.state.half_records import Half
from tests.support.ledger_model import entry, half, hand_out, new_ledger, op, taken_ready

ALL = 1_000
MINUTE = 60_000


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def ledger_with(policy: BodyPolicy, *halves: Half) -> Ledger:
    return new_ledger(bodies=policy, halves=halves)


def kept(ledger: Ledger) -> list[int]:
    found = (half for transaction in ledger.pending.by_id.values() for half in transaction.all_halves())
    return sorted(half.offset for half in found if half.has_body())


def test_bodies_are_let_go_at_their_age_the_oldest_first() -> None:
    ledger = ledger_with(BodyPolicy(age=MINUTE), *(half(offset, offset, time=offset * 1_000) for offset in range(5)))
    ledger.bodies.let_go(MINUTE - 1)
    assert kept(ledger) == [0, 1, 2, 3, 4]
    ledger.bodies.let_go(MINUTE + 1_500)
    assert kept(ledger) == [2, 3, 4]
    ledger.bodies.let_go(10 * MINUTE)
    assert (kept(ledger), ledger.bodies._bytes) == ([], 0)


def test_of_too_many_bytes_the_oldest_are_let_go() -> None:
    halves = [half(offset, offset) for offset in range(5)]
    ledger = ledger_with(BodyPolicy(age=MINUTE, bytes=3 * halves[0].size()), *halves)
    ledger.bodies.let_go(1_000)
    assert kept(ledger) == [2, 3, 4]


def test_what_is_settled_is_no_longer_counted() -> None:
    ledger = ledger_with(BodyPolicy(age=MINUTE), half(0, 0), half(1, 1))
    ledger.read_ops([op(0, entry(OpKind.ROLLBACK, 0, "0", 0, 0))])
    ledger.bodies.let_go(1_000)
    assert ledger.bodies._bytes == half(1, 1).size()


def test_a_half_that_comes_after_the_bodies_were_let_go_has_its_own() -> None:
    ledger = ledger_with(BodyPolicy(age=MINUTE), half(0, 0, 0, time=0))
    ledger.bodies.let_go(MINUTE)
    ledger.read_halves([half(1, 0, 1, time=MINUTE)])
    assert kept(ledger) == [1]
    ledger.bodies.let_go(2 * MINUTE)
    assert kept(ledger) == []


def test_what_is_delivered_or_parked_wants_its_bodies_again_and_is_whole_then() -> None:
    halves = [half(offset, offset, key=str(offset).encode()) for offset in range(3)]
    ledger = ledger_with(BodyPolicy(age=0), *halves)
    ledger.bodies.let_go(MINUTE)
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 1, "0", 1, 1), time=10**9)])
    ledger.overdue.ops_read_until(10**9)
    wanted: list[int] = []

    def fetch(offsets: Iterable[int]) -> dict[int, Half]:
        wanted.extend(offsets)
        return {found.offset: found for found in halves}

    batch = hand_out(ledger, fetch).next(10**9)
    assert sorted(wanted) == [0, 1, 2]
    assert [record.key for record in batch.records if record.topic == "real"] == [b"1"]
    assert [move.halves for move in batch.moves] == [[halves[0]], [halves[2]]]


def test_a_listener_is_not_asked_without_the_message() -> None:
    ledger = ledger_with(BodyPolicy(age=0), half(0, 0, truth=Truth.LISTENER), half(1, 1, truth=Truth.LISTENER))
    ledger.overdue.ops_read_until(MINUTE)
    first = ledger.take_due(MINUTE)
    assert all(request.message is not None for request in first)
    ledger.bodies.let_go(MINUTE)
    ledger.overdue.ops_read_until(10 * MINUTE)
    (request, _) = ledger.take_due(10 * MINUTE)
    assert request.message is None
    offset = 0 if request.first_offset == 0 else 1
    assert first_half(ledger.find(request.transaction_id), ledger.discards) == (None, offset)


@pytest.mark.usefixtures("uncollected")
def test_a_ledger_that_is_given_up_leaves_memory_before_its_successor_comes() -> None:
    ledger = ledger_with(BodyPolicy(age=MINUTE), half(0, 0), half(1, 1))
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 0, "0", 0, 0))])
    ledger.bodies.let_go(10 * MINUTE)
    assert len(taken_ready(ledger, ALL)) == 1
    gone = weakref.ref(ledger)
    del ledger
    assert gone() is None
