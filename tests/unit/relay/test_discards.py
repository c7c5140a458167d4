"""The discard index, case by case: what lies in the discard topic, how it leaves, and that nothing leaves twice."""

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from outbox.protocol.discard import DiscardReason, Manifest, parse_manifest
from outbox.protocol.half import HalfOptions, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.delivery.rules.outgoing import Finding
from relay.half.ledger.ledger import Ledger
from relay.half.state.check_schedule import first_half
from relay.half.state.discard_index import all_keys, from_manifest, record_keys, to_manifest
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import State, Transaction
from tests.support import protocol_strategies as some
from tests.support.ledger_model import (
    CHANNEL,
    PARTITION,
    SERVICE,
    SOON,
    TOPIC_ID,
    TOPICS,
    World,
    entry,
    half,
    hand_out,
    new_ledger,
    op,
    taken_ready,
    transaction_id,
)

COMMIT, ROLLBACK, DELIVER = OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DELIVER
CHECKER, PRODUCER, LISTENER, OPERATOR = OpSource.CHECKER, OpSource.PRODUCER, OpSource.LISTENER, OpSource.OPERATOR
ALL = 1_000_000
LATE = 10**12
DAY = 86_400_000
MISSING = Finding(DiscardReason.TOPIC_MISSING, "topic real does not exist")


def ledger_with_parked(*halves: int, truth: Truth = Truth.ROW) -> Ledger:
    """A ledger that has parked transaction 1, with so many halves at the offsets from 0 on."""
    ledger = new_ledger(halves=(half(position, 1, position, key=b"k", truth=truth) for position in halves or (0,)))
    park(ledger)
    return ledger


def park(ledger: Ledger) -> list[Manifest]:
    """Park whatever is undecided, or follows what is."""
    ledger.overdue.ops_read_until(LATE)
    moves = ledger.take_parked(LATE, ALL)
    found = [(move.transaction, move.transaction.discarded) for move in moves]
    return [to_manifest(transaction, finding, TOPIC_ID, PARTITION) for transaction, finding in found if finding]


def ready(ledger: Ledger) -> list[int]:
    return [int(transaction.id[-12:], 16) for transaction in taken_ready(ledger, ALL)]


def removed(ledger: Ledger) -> list[int]:
    return [int(transaction.id[-12:], 16) for transaction in ledger.discards.take_removed()]


def ledger_with_refused() -> Ledger:
    """A ledger whose transaction 1, of one half, was committed and then refused by pre-flight."""
    ledger = new_ledger(halves=[half(0, 1)], ops=[op(0, entry(COMMIT, 1, "0", 0, 0))])
    (transaction,) = taken_ready(ledger, ALL)
    ledger.refuse(transaction, MISSING)
    return ledger


@pytest.mark.parametrize("source", OpSource)
def test_whoever_decides_a_commit_has_it_delivered(source: OpSource) -> None:
    ledger = ledger_with_parked()
    assert ledger.discards.count() == (1, 0)
    ledger.read_ops([op(0, entry(COMMIT, 1, "0", 0, 0), source=source)])
    assert ledger.checkpoints().op == OpCheckpoint(0, 1), "the op is needed until its effect is committed"
    (transaction,) = taken_ready(ledger, ALL)
    assert transaction.discarded is not None
    assert [found.offset for found in transaction.counted()] == [0]
    assert ledger.checkpoints().op == OpCheckpoint(1, 1)
    assert ledger.discards.count() == (0, 0)


@pytest.mark.parametrize("source", OpSource)
def test_whoever_decides_a_rollback_has_it_removed(source: OpSource) -> None:
    ledger = ledger_with_parked()
    ledger.read_ops([op(0, entry(ROLLBACK, 1, "0", 0, 0), source=source)])
    assert ledger.checkpoints().op == OpCheckpoint(0, 1)
    assert (ready(ledger), removed(ledger)) == ([], [1])
    assert ledger.checkpoints().op == OpCheckpoint(1, 1)
    assert ledger.discards.count() == (0, 0)


def test_what_was_delivered_is_not_delivered_again_when_the_op_is_read_again() -> None:
    ledger = ledger_with_parked()
    decision = entry(COMMIT, 1, "0", 0, 0)
    ledger.read_ops([op(0, decision), op(1, decision, source=CHECKER)])
    assert ready(ledger) == [1]
    ledger.read_ops([op(2, decision)])
    assert ready(ledger) == []
    assert ledger.counts["op_settled"] == 1
    again = new_ledger(ledger.checkpoints().half, OpCheckpoint(0, 3))
    again.read_ops(op(offset, decision) for offset in range(3))
    assert ready(again) == []


def test_a_commit_whose_effect_was_not_committed_has_it_after_the_crash() -> None:
    ledger = new_ledger(halves=[half(0, 1)])
    manifests = park(ledger)
    ledger.read_ops([op(0, entry(COMMIT, 1, "0", 0, 0))])
    again = new_ledger(ledger.checkpoints().half, ledger.checkpoints().op)
    again.restore_discards(manifests)
    again.read_ops([op(0, entry(COMMIT, 1, "0", 0, 0))])
    assert ready(again) == [1]


def test_a_half_that_follows_is_written_before_its_transaction_is_delivered() -> None:
    ledger = ledger_with_parked(0)
    ledger.read_halves([half(1, 1, 1)])
    ledger.read_ops([op(0, entry(COMMIT, 1, "0-1", 0, 1))])
    out = hand_out(ledger, discards=lambda wanted: {offset: half(offset, 1, offset) for offset in wanted.values()})
    batch = out.next(LATE)
    assert not batch.ready
    assert [found.offset for move in batch.moves for found in move.halves] == [1]
    assert [int(found.id[-12:], 16) for found in out.next(LATE).delivered()] == [1]


def test_contradictions_are_looked_up_there_too() -> None:
    ledger = ledger_with_parked(0)
    ledger.read_ops([op(0, entry(COMMIT, 1, "0", 0, 5)), op(1, entry(ROLLBACK, 1, "0", 0, 5))])
    assert ledger.counts["contradiction"] == 1
    assert ledger.checkpoints().op == OpCheckpoint(2, 2), "neither of them is needed any more"
    (request,) = ledger.take_due(LATE)
    assert request.transaction_id == transaction_id(1)
    ledger.read_ops([op(2, entry(COMMIT, 1, "0", 0, 0), source=CHECKER)])
    assert ready(ledger) == [1]


def test_it_is_no_longer_in_the_order_of_its_key() -> None:
    ledger = ledger_with_parked(0)
    ledger.read_halves([half(1, 2, key=b"k")])
    ledger.read_ops([op(0, entry(COMMIT, 1, "0", 0, 0)), op(1, entry(COMMIT, 2, "0", 1, 1))])
    assert sorted(ready(ledger)) == [1, 2]
    ledger = ledger_with_parked(0)
    ledger.read_halves([half(1, 2, key=b"k")])
    ledger.read_ops([op(0, entry(COMMIT, 1, "0", 0, 0))])
    assert ready(ledger) == [1], "and waits for nobody"


def test_it_goes_on_being_asked_about_and_keeps_its_count() -> None:
    ledger = ledger_with_parked(0, truth=Truth.LISTENER)
    (request,) = ledger.take_due(LATE)
    assert (request.check, request.message) == (1, None)
    place = first_half(ledger.find(request.transaction_id), ledger.discards)
    assert place == (f"{transaction_id(1)}/0".encode(), 0)
    unknown = entry(OpKind.UNKNOWN, 1, "0", 0, 0, checks=1, reason="who knows")
    ledger.read_ops([op(0, unknown, source=LISTENER), op(1, unknown, source=LISTENER)])
    assert ledger.take_due(2 * LATE) == [], "ops up to then were not read"
    ledger.overdue.ops_read_until(2 * LATE)
    (request,) = ledger.take_due(2 * LATE)
    assert request.check == 2
    ledger.read_ops([op(2, entry(COMMIT, 1, "0", 0, 0), source=LISTENER)])
    assert ready(ledger) == [1]
    assert first_half(ledger.find(transaction_id(1)), ledger.discards) is None


def test_the_checker_is_asked_on_and_brings_it_back() -> None:
    ledger = ledger_with_parked()
    for time in (LATE, 2 * LATE):
        ledger.overdue.ops_read_until(time)
        assert [request.transaction_id for request in ledger.take_due(time)] == [transaction_id(1)]
    ledger.read_ops([op(0, entry(COMMIT, 1, "0", 0, 0), source=CHECKER)])
    assert ready(ledger) == [1]


def test_an_operator_has_pre_flight_look_again() -> None:
    ledger = ledger_with_refused()
    assert ledger.discards.count() == (0, 1)
    deliver = entry(DELIVER, 1, "0", 0, 0)
    ledger.read_ops([op(1, deliver, source=OPERATOR), op(2, deliver, source=OPERATOR)])
    assert ledger.checkpoints().op == OpCheckpoint(1, 3)
    (transaction,) = taken_ready(ledger, ALL)
    assert transaction.complete()
    assert transaction.discarded == MISSING
    assert ledger.discards.count() == (0, 0)
    assert ledger.checkpoints().op == OpCheckpoint(3, 3)
    ledger.refuse(transaction, Finding(DiscardReason.TOO_LARGE, "too large now"))
    assert ledger.discards.count() == (0, 1)
    ledger.read_ops([op(3, deliver, source=OPERATOR)])
    (transaction,) = taken_ready(ledger, ALL)
    assert transaction.discarded == Finding(DiscardReason.TOO_LARGE, "too large now")
    ledger.read_ops([op(4, deliver, source=OPERATOR)])
    assert ready(ledger) == []


@pytest.mark.parametrize(
    ("decision", "source"),
    [
        *((entry(DELIVER, 1, "0", 0, 0), source) for source in (PRODUCER, LISTENER, CHECKER)),
        (entry(DELIVER, 1, "0-1", 0, 1), OPERATOR),
        *((entry(COMMIT, 1, "0", 0, 0), source) for source in OpSource),
        *((entry(ROLLBACK, 1, "0", 0, 0), source) for source in (PRODUCER, LISTENER)),
    ],
)
def test_nobody_else_and_nothing_else_changes_it(decision: OpEntry, source: OpSource) -> None:
    ledger = ledger_with_refused()
    ledger.read_ops([op(1, decision, source=source)])
    assert (ready(ledger), removed(ledger), ledger.discards.count()) == ([], [], (0, 1))
    assert ledger.counts["op_dropped"] == 1
    assert ledger.checkpoints().op == OpCheckpoint(2, 2)


@pytest.mark.parametrize("source", [CHECKER, OPERATOR])
def test_who_saw_the_row_may_have_it_removed(source: OpSource) -> None:
    ledger = ledger_with_refused()
    ledger.read_ops([op(1, entry(ROLLBACK, 1, "0", 0, 0), source=source)])
    assert ledger.checkpoints().op == OpCheckpoint(1, 2)
    assert (ready(ledger), removed(ledger), ledger.discards.count()) == ([], [1], (0, 0))


def test_a_deliver_op_does_not_deliver_what_is_undecided() -> None:
    ledger = ledger_with_parked(0)
    ledger.read_ops([op(0, entry(DELIVER, 1, "0", 0, 0), source=OPERATOR)])
    assert (ready(ledger), ledger.discards.count()) == ([], (1, 0))


def test_a_late_commit_that_cannot_be_delivered_stays_with_the_new_reason() -> None:
    world = World(parking=SOON)
    local = world.begin(1, b"k")
    world.send(local)
    world.read_halves(1)
    world.now += 10_000
    world.see_op_end()
    world.deliver(ALL)
    world.commit(local)
    world.send_op(local)
    world.read_ops(1)
    world.topics = {}
    world.deliver(ALL)
    (manifest,) = world.discarded().values()
    assert (manifest.reason, manifest.decision) == (DiscardReason.TOPIC_MISSING, COMMIT)
    world.restore()
    world.topics = dict(TOPICS)
    world.order_deliveries()
    world.read_verdicts(9)
    world.deliver(ALL)
    assert not world.discarded()
    assert not world.alive()
    assert list(world.delivered) == [local.id]


def test_a_half_that_comes_after_the_decision_is_settled() -> None:
    ledger = ledger_with_refused()
    ledger.read_halves([half(1, 1, 1)])
    assert ledger.checkpoints().half == HalfCheckpoint(2, 2)
    assert ledger.counts["stray"] == 1


@pytest.mark.parametrize("append_time", [0, DAY])  # 0: it was refused since the take-over, and seen at the first look
def test_what_was_refused_leaves_by_age_and_what_is_undecided_stays(append_time: int) -> None:
    manifest, ledger = ledger_with_refused().discards.refused(transaction_id(1)), new_ledger(halves=[half(1, 2)])
    park(ledger)
    ledger.restore_discards([parse_manifest(manifest.encode(), append_time)])
    for days, expiring in ((1, 0), (23, 0), (25, 1), (31, 1)):
        ledger.discards.expire(days * DAY, 7 * DAY, days * DAY)
        assert (removed(ledger), ledger.discards.expiring) == ([], expiring)
    ledger.discards.expire(31 * DAY + 1, 7 * DAY, 31 * DAY + 1)
    found = [(record.key, record.value) for record in hand_out(ledger).next(0).records]
    assert found == [(f"{transaction_id(1)}/{end}".encode(), None) for end in (0, "manifest")]
    assert ledger.discards.count() == (1, 0)


def test_what_an_operator_resumed_does_not_leave_by_age() -> None:
    ledger = ledger_with_refused()
    ledger.discards.expire(DAY, 0, 0)
    ledger.discards.expire(40 * DAY, 0, 31 * DAY)  # an op of the 31st day may not be read yet
    assert (removed(ledger), ledger.needs_op_end(40 * DAY)) == ([], True)
    ledger.overdue.ops_read_until(40 * DAY, verdict=False)
    ledger.overdue.ops_read_until(40 * DAY, verdict=True)
    assert not ledger.needs_op_end(40 * DAY)
    ledger.read_ops([op(1, entry(DELIVER, 1, "0", 0, 0), source=OPERATOR)])
    ledger.discards.expire(40 * DAY, 0, 40 * DAY)
    assert (removed(ledger), ready(ledger)) == ([], [1])


def test_a_half_that_cannot_be_parsed_is_removed_by_an_operator() -> None:
    ledger = new_ledger(halves=[half(0, 1)], ops=[op(0, entry(COMMIT, 1, "0", 0, 0))])
    (transaction,) = taken_ready(ledger, ALL)
    manifest = to_manifest(transaction, Finding(DiscardReason.MALFORMED, "?"), TOPIC_ID, PARTITION)
    ledger.discards.refuse(manifest)
    ledger.read_ops([op(1, entry(ROLLBACK, 1, "0", 0, 0), source=OPERATOR)])
    assert removed(ledger) == [1]


def test_two_halves_of_one_position_have_two_keys_whichever_counts() -> None:
    ledger = new_ledger(halves=[half(0, 1), half(1, 1), half(2, 1, 1)])
    (manifest,) = park(ledger)
    assert manifest.offsets == ((0, 0), (0, 1), (1, 2))
    id_ = transaction_id(1)
    keys = {0: f"{id_}/0".encode(), 1: f"{id_}/0/1".encode(), 2: f"{id_}/1".encode()}
    restored = from_manifest(manifest)
    assert record_keys(restored) == keys
    ledger.read_ops([op(0, entry(COMMIT, 1, "0-1", 1, 2))])
    fetched: dict[bytes, int] = {}

    def fetch(wanted: Mapping[bytes, int]) -> dict[int, Half]:
        fetched.update(wanted)
        return {1: half(1, 1), 2: half(2, 1, 1)}

    batch = hand_out(ledger, discards=fetch).next(0)
    (transaction,) = batch.delivered()
    assert [found.offset for found in transaction.counted()] == [1, 2]
    assert record_keys(transaction) == keys
    assert fetched == {keys[1]: 1, keys[2]: 2}
    tombstones = [record.key for record in batch.records if record.topic == CHANNEL.discard_topic]
    assert tombstones == [keys[0], keys[1], keys[2], f"{id_}/manifest".encode()] == all_keys(transaction)
    assert all(record.value is None for record in batch.records if record.topic == CHANNEL.discard_topic)


@some.relaxed
@given(
    pairs=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 10**6)), min_size=1, unique_by=lambda pair: pair[1]),
    key=st.one_of(st.none(), st.binary(max_size=9)),
    reason=st.sampled_from(DiscardReason),
    answers=st.integers(0, 99),
)
def test_a_manifest_says_all_that_the_index_needs(
    pairs: list[tuple[int, int]], key: bytes | None, reason: DiscardReason, answers: int
) -> None:
    transaction = Transaction(transaction_id(1), SERVICE, Truth.ROW, key, transaction_id(9), 0)
    transaction.unknown_answers, transaction.last_answer = answers, "who knows"
    for position, offset in sorted(pairs, key=lambda pair: pair[1]):
        transaction.add(position, half(offset, 1, position))
    manifest = to_manifest(transaction, Finding(reason, "why"), TOPIC_ID, PARTITION)
    found = from_manifest(parse_manifest(manifest.encode()))
    assert record_keys(found) == record_keys(transaction)
    assert found.seen() == transaction.seen()
    assert to_manifest(found, Finding(reason, "why"), TOPIC_ID, PARTITION) == manifest
    assert found.state is (State.PENDING if reason is DiscardReason.UNDECIDED else State.DISCARDED)


def test_what_belongs_to_another_half_topic_is_left_alone() -> None:
    ledger = new_ledger()
    transaction = Transaction(transaction_id(1), SERVICE, Truth.ROW, None, None, 0)
    transaction.add(0, half(0, 1))
    found = Finding(DiscardReason.UNDECIDED, "")
    places = [(TOPIC_ID, PARTITION + 1), (transaction_id(7), PARTITION)]
    foreign = [to_manifest(transaction, found, *place) for place in places]
    ledger.restore_discards(foreign)
    assert ledger.discards.count() == (0, 0)


def test_immunity_does_not_keep_from_being_parked_but_from_being_asked() -> None:
    ledger = new_ledger(halves=[half(0, 1, options=HalfOptions(immunity=LATE))])
    assert len(park(ledger)) == 1
    assert ledger.take_due(LATE) == []


def test_every_order_of_reading_parking_delivering_and_crashing_delivers_once() -> None:
    """A transaction of two halves and a later one of its key, their ops, parking; a crash after any step, or none."""
    for steps in sorted(set(itertools.permutations("hhhoop"))):
        for crash, commits in itertools.product(range(len(steps) + 1), (False, True)):
            _run(steps, crash, commits=commits)


def _run(steps: tuple[str, ...], crash: int, *, commits: bool) -> None:
    world = World(parking=SOON)
    first, second = world.begin(2, b"k"), world.begin(1, b"k")
    for local in (first, second, first):
        world.send(local)
    for local in (second, first):
        world.commit(local)
        world.send_op(local)
    for number, step in enumerate(steps):
        if step == "p":
            world.now += 10_000
            world.ledger.overdue.ops_read_until(world.now)  # as if the ops came later than any checkpoint knows
            world.deliver(ALL)
        else:
            (world.read_halves if step == "h" else world.read_ops)(1)
        if commits:
            world.deliver(ALL)
        if number == crash:
            world.take(ALL)
    world.drain()
    assert set(world.delivered) == {first.id, second.id}
