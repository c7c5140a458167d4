"""The ledger, case by case."""

import itertools
import random
from dataclasses import replace

import pytest

import relay.half.ledger.op_decisions
from outbox.protocol.check import parse_check
from outbox.protocol.checkpoint import (
    FAR,
    FEW,
    WINDOW,
    CheckpointError,
    HalfCheckpoint,
    OpCheckpoint,
    parse_half_checkpoint,
    parse_op_checkpoint,
    runs_of,
)
from outbox.protocol.half import HalfOptions, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.half.ledger.ledger import Ledger
from relay.half.serving.take_over import is_owed
from relay.half.state.half_records import Half, OpRecord
from relay.half.state.message_transaction import Transaction
from relay.half.state.parking import ParkingPolicy
from tests.support.ledger_model import (
    OP_TOPIC_ID,
    PARTITION,
    POLICY,
    TOPIC_ID,
    damaged,
    entry,
    half,
    new_ledger,
    op,
    taken_ready,
    transaction_id,
)

COMMIT, ROLLBACK, UNKNOWN, DELIVER = OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN, OpKind.DELIVER
CHECKER, PRODUCER, LISTENER, OPERATOR = OpSource.CHECKER, OpSource.PRODUCER, OpSource.LISTENER, OpSource.OPERATOR
ALL = 1_000_000
LATE = 10**12


def commit(number: int, offset: int) -> OpEntry:
    return entry(COMMIT, number, "0", offset, offset)


def rollback(number: int, offset: int) -> OpEntry:
    return entry(ROLLBACK, number, "0", offset, offset)


def numbers(transactions: list[Transaction]) -> list[int]:
    return [int(transaction.id[-12:], 16) for transaction in transactions]


def take(ledger: Ledger, messages: int = ALL) -> list[int]:
    return numbers(taken_ready(ledger, messages))


def offsets(transaction: Transaction) -> list[int]:
    return [found.offset for found in transaction.counted()]


def restored(ledger: Ledger) -> Ledger:
    """The ledger that the next owner makes of this one's checkpoints, by way of their strings."""
    half_checkpoint, op_checkpoint = ledger.checkpoints().half, ledger.checkpoints().op
    return new_ledger(
        parse_half_checkpoint(half_checkpoint.encode(TOPIC_ID, 0), half_checkpoint.offset, TOPIC_ID, 0),
        parse_op_checkpoint(op_checkpoint.encode(OP_TOPIC_ID, 0), op_checkpoint.offset, OP_TOPIC_ID, 0),
    )


def overdue(ledger: Ledger, now: int = LATE) -> list[str]:
    """Who is asked about once the op partition was read to its end."""
    ledger.overdue.ops_read_until(now)
    return [request.transaction_id for request in ledger.take_due(now)]


def test_a_committed_half_is_handed_out_once_and_counts_as_settled_then() -> None:
    ledger = new_ledger(halves=[half(0, 1)])
    assert take(ledger) == []
    ledger.read_ops([op(0, commit(1, 0))])
    assert ledger.checkpoints().half == HalfCheckpoint(0, 1, runs_of([0])), "not settled before it is taken"
    assert take(ledger) == [1]
    assert take(ledger) == []
    assert ledger.checkpoints().half == HalfCheckpoint(1, 1)
    assert ledger.checkpoints().op == OpCheckpoint(1, 1)
    assert len(ledger.pending) == 0


def test_a_rolled_back_half_is_settled_and_never_handed_out() -> None:
    ledger = new_ledger(halves=[half(0, 1)], ops=[op(0, rollback(1, 0)), op(1, commit(1, 0))])
    assert take(ledger) == []
    assert ledger.checkpoints().half == HalfCheckpoint(1, 1)
    assert ledger.counts["op_settled"] == 1


def test_an_undecided_half_pends() -> None:
    ledger = new_ledger(halves=[half(0, 1)])
    assert len(ledger.pending) == 1
    assert ledger.checkpoints().half == HalfCheckpoint(0, 1, runs_of([0]))


def test_messages_are_counted_in_the_order_of_their_positions_wherever_they_lie() -> None:
    ledger = new_ledger(halves=[half(0, 1, 2), half(1, 2), half(2, 1, 0), half(3, 1, 1)])
    ledger.read_ops([op(0, entry(COMMIT, 1, "0-2", 0, 3))])
    (transaction,) = taken_ready(ledger, ALL)
    assert offsets(transaction) == [2, 3, 0]
    assert transaction.complete()


def test_a_batch_is_limited_by_messages_and_never_splits_a_transaction() -> None:
    ledger = new_ledger()
    ledger.read_halves(half(3 * number + position, number, position) for number in range(5) for position in range(3))
    ledger.read_ops([op(0, *(entry(COMMIT, number, "0-2", 3 * number, 3 * number + 2) for number in range(5)))])
    assert take(ledger, 0) == []
    assert take(ledger, 1) == [0]
    assert take(ledger, 4) == [1, 2]
    assert ledger.checkpoints().half == HalfCheckpoint(9, 15, runs_of(range(9, 15)))
    assert take(ledger, ALL) == [3, 4]


def test_a_malformed_half_leaves_by_its_own_door() -> None:
    ledger = new_ledger(halves=[damaged(0), half(1, 1)])
    assert ledger.checkpoints().half == HalfCheckpoint(0, 2, runs_of([0, 1]))
    assert [found.offset for found in ledger.take_malformed()] == [0]
    assert ledger.take_malformed() == []
    assert ledger.checkpoints().half == HalfCheckpoint(1, 2, runs_of([1]))


def test_what_is_read_again_is_passed_over() -> None:
    ledger = new_ledger(halves=[half(0, 1), half(1, 2)])
    ledger.read_halves([half(0, 1), half(1, 2)])
    ledger.read_ops([op(0, commit(1, 0))])
    ledger.read_ops([op(0, commit(2, 1))])
    assert take(ledger) == [1]
    assert ledger.counts["half_reread"] == 2
    assert ledger.counts["op_reread"] == 1


@pytest.mark.parametrize("key", [b"k", b""])
def test_one_ordering_key_keeps_the_order_of_first_halves(key: bytes) -> None:
    ledger = new_ledger(halves=[half(0, 1, key=key), half(1, 2, key=key), half(2, 3, key=key)])
    ledger.read_ops([op(0, commit(3, 2)), op(1, commit(2, 1))])
    assert take(ledger) == []
    ledger.read_ops([op(2, commit(1, 0))])
    assert take(ledger) == [1, 2, 3]


def test_other_keys_other_services_and_no_key_do_not_wait() -> None:
    ledger = new_ledger()
    ledger.read_halves(
        [
            half(0, 0, key=b"k"),
            half(1, 1, key=b"other"),
            half(2, 2, key=b"k", service="stock"),
            half(3, 3),
            half(4, 4, key=b"k", options=HalfOptions(ordering=(None,))),
            half(5, 5, key=b"x", options=HalfOptions(ordering=(b"k",))),
        ]
    )
    ledger.read_ops([op(0, *(commit(number, number) for number in range(1, 6)))])
    assert take(ledger) == [1, 2, 3, 4]
    ledger.read_ops([op(1, commit(0, 0))])
    assert take(ledger) == [0, 5]


def test_straggler_is_ordered_behind_its_transaction() -> None:
    """It came too late for its transaction, which keeps its place."""
    ledger = new_ledger(halves=[half(0, 1, key=b"k"), half(1, 2, key=b"k")], ops=[op(0, rollback(2, 1))])
    ledger.read_halves([half(2, 2, 1, key=b"k"), half(3, 3, key=b"k")])
    ledger.read_ops([op(1, commit(1, 0), commit(3, 3))])
    assert take(ledger) == [1]
    ledger.read_ops([op(2, entry(ROLLBACK, 2, "1", 2, 2), source=CHECKER)])
    assert take(ledger) == [3]


def test_a_transaction_is_incomplete_once_its_last_offset_was_read_past() -> None:
    ledger = new_ledger(halves=[half(0, 1, 0)], ops=[op(0, entry(COMMIT, 1, "0-1", 0, 2))])
    ledger.read_halves([half(1, 2)])
    assert take(ledger) == []
    ledger.read_halves([half(2, 3)])
    (transaction,) = taken_ready(ledger, ALL)
    assert not transaction.complete()
    assert offsets(transaction) == [0]
    assert ledger.checkpoints().half == HalfCheckpoint(1, 3, runs_of([1, 2]))


def test_one_that_waits_for_its_halves_holds_its_ordering_key() -> None:
    ledger = new_ledger(halves=[half(0, 1, 0, key=b"k"), half(1, 2, key=b"k")])
    ledger.read_ops([op(0, entry(COMMIT, 1, "0-1", 0, 2), commit(2, 1))])
    assert take(ledger) == []
    ledger.read_halves([half(2, 9)])
    assert take(ledger) == [1, 2], "incomplete, but in its order"


def test_struck_messages_are_settled_undelivered() -> None:
    ledger = new_ledger(halves=(half(position, 1, position) for position in range(4)))
    ledger.read_ops([op(0, entry(COMMIT, 1, "0,3", 0, 3))])
    (transaction,) = taken_ready(ledger, ALL)
    assert offsets(transaction) == [0, 3]
    assert transaction.complete()
    assert ledger.checkpoints().half == HalfCheckpoint(4, 4)


def test_a_straggler_that_comes_while_the_transaction_is_held_goes_with_it() -> None:
    ledger = new_ledger(halves=[half(0, 1, key=b"k"), half(1, 2, key=b"k")], ops=[op(0, commit(2, 1))])
    ledger.read_halves([half(2, 2, 1, key=b"k"), half(3, 2, 0, key=b"k")])
    ledger.read_ops([op(1, commit(1, 0))])
    first, second = taken_ready(ledger, ALL)
    assert [offsets(first), offsets(second)] == [[0], [1]]
    assert ledger.checkpoints().half == HalfCheckpoint(4, 4)


def test_copies_that_a_mirror_made_are_settled_with_the_original() -> None:
    ledger = new_ledger(halves=[half(0, 1, 0), half(1, 1, 1), half(2, 1, 0), half(3, 1, 1)])
    assert ledger.counts["half_copy"] == 2
    assert ledger.checkpoints().half == HalfCheckpoint(0, 4, runs_of([0, 1, 2, 3]))
    ledger.read_ops([op(0, entry(COMMIT, 1, "0-1", 0, 1))])
    (transaction,) = taken_ready(ledger, ALL)
    assert offsets(transaction) == [0, 1]
    assert ledger.checkpoints().half == HalfCheckpoint(4, 4)


@pytest.mark.parametrize("decided_first", [True, False])
def test_of_two_halves_of_one_position_the_acknowledged_one_counts(*, decided_first: bool) -> None:
    """A half was stored, its acknowledgement lost, and the half stored again: the row names the second one."""
    ledger = new_ledger()
    halves = [half(0, 1, 0), half(1, 1, 0), half(2, 1, 1)]
    ops = [op(0, entry(COMMIT, 1, "0-1", 1, 2))]
    if decided_first:
        ledger.read_ops(ops)
    ledger.read_halves(halves)
    if not decided_first:
        ledger.read_ops(ops)
    (transaction,) = taken_ready(ledger, ALL)
    assert offsets(transaction) == [1, 2]
    assert transaction.complete()
    assert ledger.checkpoints().half == HalfCheckpoint(3, 3)


def test_a_rollback_of_a_part_settles_all_that_was_read() -> None:
    ledger = new_ledger(halves=[half(0, 1, 0), half(1, 1, 1), half(2, 1, 1)])
    ledger.read_ops([op(0, rollback(1, 0), source=CHECKER)])
    assert ledger.checkpoints().half == HalfCheckpoint(3, 3)


def test_a_large_transaction_is_judged_once_not_at_each_of_its_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    counted = Transaction.counted

    def spy(transaction: Transaction) -> list[Half]:
        judged.append(transaction.id)
        return counted(transaction)

    monkeypatch.setattr(Transaction, "counted", spy)
    ledger = new_ledger(ops=[op(0, entry(COMMIT, 1, "0-9999", 0, 9_999))])
    for start in range(0, 10_000, 100):
        ledger.read_halves(half(offset, 1, offset) for offset in range(start, start + 100))
    assert take(ledger) == [1]
    assert len(judged) < 5


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("answer", "delivered"), [(commit(1, 0), [1]), (rollback(1, 0), [])])
def test_a_contradiction_is_looked_up_and_the_checker_wins(
    answer: OpEntry, delivered: list[int], *, early: bool
) -> None:
    ledger = new_ledger()
    ops = [op(0, commit(1, 0)), op(1, rollback(1, 0))]
    if early:
        ledger.read_ops(ops)
    ledger.read_halves([half(0, 1, time=1_000)])
    if not early:
        ledger.read_ops(ops)
    assert ledger.counts["contradiction"] == 1
    assert take(ledger) == []
    assert overdue(ledger, now=1_000) == [transaction_id(1)], "at once, not at its due time"
    ledger.read_ops([op(2, answer, source=CHECKER), op(3, commit(1, 0)), op(4, rollback(1, 0))])
    assert take(ledger) == delivered
    assert len(ledger.pending) == 0


def test_a_third_op_of_a_producer_does_not_end_a_dispute() -> None:
    ledger = new_ledger(halves=[half(0, 1, key=b"k"), half(1, 2, key=b"k")])
    ledger.read_ops([op(0, commit(1, 0)), op(1, rollback(1, 0)), op(2, commit(1, 0)), op(3, commit(2, 1))])
    assert take(ledger) == []
    assert ledger.counts["op_dropped"] == 1
    ledger.read_ops([op(4, commit(1, 0), source=CHECKER)])
    assert take(ledger) == [1, 2], "it kept its place"


def test_commits_that_list_different_halves_contradict_each_other() -> None:
    ledger = new_ledger(halves=[half(0, 1, 0), half(1, 1, 1)])
    ledger.read_ops([op(0, entry(COMMIT, 1, "0", 0, 0)), op(1, entry(COMMIT, 1, "0-1", 0, 1))])
    assert take(ledger) == []
    ledger.read_ops([op(2, entry(COMMIT, 1, "0-1", 0, 1), source=CHECKER)])
    (transaction,) = taken_ready(ledger, ALL)
    assert offsets(transaction) == [0, 1]


def test_a_listener_that_was_asked_ends_a_dispute_of_its_own_transactions() -> None:
    ledger = new_ledger(halves=[half(0, 1, truth=Truth.LISTENER), half(1, 2)])
    for offset, number in ((0, 1), (1, 2)):
        ledger.read_ops([op(2 * offset, commit(number, offset)), op(2 * offset + 1, rollback(number, offset))])
    ledger.read_ops([op(4, commit(1, 0), commit(2, 1), source=LISTENER)])
    assert take(ledger) == [1], "the other one's truth is the row"
    assert len(ledger.pending) == 1


def test_a_decision_that_was_replaced_is_not_acted_on_when_its_halves_are_read() -> None:
    ledger = new_ledger(halves=[half(0, 1, 0), half(1, 2, 0)])
    ledger.read_ops([op(0, *(entry(COMMIT, number, "0-1", number - 1, 5) for number in (1, 2)))])
    ledger.read_ops([op(1, rollback(1, 0), commit(2, 1), source=CHECKER)])
    assert take(ledger) == [2]
    ledger.read_halves(half(offset, 100 + offset) for offset in range(2, 9))
    assert take(ledger) == []
    assert ledger.checkpoints().half == HalfCheckpoint(2, 9, runs_of(range(2, 9)))


def test_an_op_that_comes_before_its_half_is_kept_and_pins_the_op_partition() -> None:
    ledger = new_ledger(ops=[op(0, commit(9, 90)), op(1, commit(1, 1)), op(2, rollback(2, 2))])
    assert ledger.checkpoints().op == OpCheckpoint(0, 3)
    ledger.read_halves([half(0, 0), half(1, 1), half(2, 2)])
    assert take(ledger) == [1]
    assert ledger.checkpoints().half == HalfCheckpoint(0, 3, runs_of([0]))
    assert ledger.checkpoints().op == OpCheckpoint(0, 3)
    ledger.read_halves(half(offset, offset) for offset in range(3, 91) if offset not in {1, 2, 9})
    assert ledger.checkpoints().op == OpCheckpoint(3, 3)


def test_early_ops_of_one_transaction_pin_one_by_one() -> None:
    ledger = new_ledger(ops=[op(0, commit(1, 5)), op(1, commit(2, 6)), op(2, entry(COMMIT, 1, "0-1", 5, 9))])
    ledger.read_halves(half(offset, 100 + offset) for offset in range(6))
    assert ledger.checkpoints().op == OpCheckpoint(1, 3), "the first one's offsets were read, the third one's not"
    ledger.read_halves([half(6, 2)])
    assert ledger.checkpoints().op == OpCheckpoint(1, 3), "the second one's decision has had no effect yet (R85)"
    assert take(ledger) == [2]
    assert ledger.checkpoints().op == OpCheckpoint(2, 3)
    ledger.read_halves(half(offset, 100 + offset) for offset in range(7, 10))
    assert ledger.checkpoints().op == OpCheckpoint(3, 3)


def test_an_op_whose_offsets_were_read_without_its_half_is_lost() -> None:
    ledger = new_ledger(ops=[op(0, commit(1, 1)), op(1, rollback(2, 1)), op(2, commit(3, 2))])
    ledger.read_halves([half(0, 10), half(1, 11)])
    assert (ledger.counts["op_lost"], ledger.counts["op_settled"]) == (1, 1)
    assert ledger.checkpoints().op == OpCheckpoint(2, 3)


def test_a_replay_after_a_restart_is_not_lost() -> None:
    ledger = new_ledger(HalfCheckpoint(0, 3, runs_of([0, 2])), OpCheckpoint(0, 2), ops=[op(0, commit(1, 1))])
    ledger.read_halves([half(0, 10), half(1, 1), half(2, 2)])
    assert (ledger.counts["op_lost"], ledger.counts["op_settled"]) == (0, 1)
    assert take(ledger) == [], "it was delivered before"


def test_replays_below_the_head_are_dropped_at_once_unless_they_match_a_pending_half() -> None:
    ledger = new_ledger(HalfCheckpoint(5, 9, runs_of([5])), OpCheckpoint(3, 6))
    ledger.read_ops([op(3, commit(1, 2)), op(4, commit(5, 5))])
    assert ledger.counts["op_settled"] == 1
    ledger.read_halves([half(5, 5)])
    assert take(ledger) == [5]
    assert ledger.checkpoints().half == HalfCheckpoint(9, 9)


@pytest.mark.parametrize("source", list(OpSource))
def test_conflicting_early_ops_are_weighed_together_before_anything_is_settled(source: OpSource) -> None:
    for first, second in itertools.permutations([op(0, rollback(1, 1)), op(1, commit(1, 1), source=source)]):
        ledger = new_ledger(ops=[op(0, *first.entries, source=first.source or PRODUCER)])
        ledger.read_ops([op(1, *second.entries, source=second.source or PRODUCER)])
        ledger.read_halves([half(0, 0, key=b"k"), half(1, 1, key=b"k")])
        ledger.read_ops([op(2, rollback(0, 0))])
        wise = source in {CHECKER, OPERATOR}
        assert take(ledger) == ([1] if wise else [])
        assert len(ledger.pending) == (0 if wise else 1)


def test_a_repeated_early_op_of_a_straggler_settles_it_once() -> None:
    ledger = new_ledger(ops=[op(0, commit(1, 0))])
    ledger.read_halves([half(0, 1, key=b"k")])
    assert take(ledger) == [1]
    ledger = restored(ledger)
    ledger.read_ops([op(1, entry(COMMIT, 1, "0", 0, 7)), op(2, entry(COMMIT, 1, "0", 0, 7))])
    ledger.read_halves([half(1, 0, key=b"k"), half(2, 1, 1, key=b"k")])
    ledger.read_halves(half(offset, 100 + offset) for offset in range(3, 9))
    ledger.read_ops([op(3, rollback(0, 1))])
    assert take(ledger) == []
    assert ledger.checkpoints().half.unsettled == runs_of(range(3, 9))


def test_answers_without_a_decision_are_not_kept_for_halves_ahead() -> None:
    ledger = new_ledger(ops=[op(0, entry(UNKNOWN, 1, "0", 5, 5, checks=1)), op(1, entry(DELIVER, 2, "0", 5, 5))])
    assert ledger.checkpoints().op == OpCheckpoint(2, 2)
    assert ledger.counts["op_passed"] == 2


def test_deliver_of_discarded_leaves_pending_undelivered() -> None:
    """An operator's DELIVER is for what is in the discard topic, not for a pending transaction."""
    ledger = new_ledger(halves=[half(0, 1)], ops=[op(0, entry(DELIVER, 1, "0", 0, 0), source=OPERATOR)])
    assert take(ledger) == []
    assert ledger.counts["op_dropped"] == 1


def test_early_op_counts_once_for_each_run_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a few well-formed ops take all of a relay's memory."""
    monkeypatch.setattr(relay.half.ledger.op_decisions, "EARLY_OPS", 3)
    ledger = new_ledger(ops=[op(0, entry(COMMIT, 0, "0,2,4", 0, 2)), op(1, commit(3, 3))])
    assert ledger.counts["op_passed"] == 1
    ledger.read_halves([half(0, 0)])
    assert not ledger.decisions.is_full()


def test_early_ops_beyond_the_room_are_passed_and_the_checker_answers_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay.half.ledger.op_decisions, "EARLY_OPS", 2)
    ledger = new_ledger()
    assert not ledger.decisions.is_full()
    ledger.read_ops([op(0, commit(0, 0)), op(1, commit(1, 1)), op(2, commit(2, 2))])
    assert ledger.decisions.is_full()
    assert ledger.counts["op_passed"] == 1
    ledger.read_halves(half(number, number) for number in range(3))
    assert not ledger.decisions.is_full()
    assert take(ledger) == [0, 1]
    assert ledger.checkpoints().op == OpCheckpoint(3, 3)
    assert overdue(ledger) == [transaction_id(2)]


@pytest.mark.parametrize("foreign", [{"topic_id": OP_TOPIC_ID}, {"partition": PARTITION + 1}])
def test_an_op_for_another_place_decides_nothing_here(foreign: dict[str, str | int]) -> None:
    ledger = new_ledger(halves=[half(0, 1)])
    place = (str(foreign.get("topic_id", TOPIC_ID)), int(foreign.get("partition", PARTITION)))
    elsewhere = OpEntry(COMMIT, transaction_id(1), *place, commit(1, 0).positions, 0, 0)
    ledger.read_ops([op(0, elsewhere)])
    assert take(ledger) == []
    assert ledger.counts["op_foreign"] == 1
    assert ledger.checkpoints().op == OpCheckpoint(1, 1)


def test_a_malformed_op_record_is_counted_and_passed() -> None:
    ledger = new_ledger()
    record = op(0)
    record.source = None
    ledger.read_ops([record, op(1, commit(1, 0))])
    ledger.read_halves([half(0, 1)])
    assert take(ledger) == [1]
    assert ledger.counts["op_malformed"] == 1


def verdict(offset: int, *entries: OpEntry, source: OpSource = CHECKER, time: int = 1_000) -> OpRecord:
    return OpRecord(offset, time, source, entries, "", is_verdict=True)


def test_misplaced_ops_are_counted_and_reported_once_a_minute() -> None:
    """Whoever forges decisions must not fill the log (R65)."""
    ledger = new_ledger()
    forged = [OpRecord(at, 1_000, None, (), "source checker", is_misplaced=True) for at in range(3)]
    ledger.read_halves([half(0, 1)])
    ledger.read_ops([*forged[:2], op(2, commit(1, 0))])
    assert take(ledger) == [1]
    assert (ledger.counts["op_misplaced"], ledger.counts["op_malformed"]) == (2, 0)
    assert ledger.dropped.take(1_000) == (2, forged[1])
    ledger.read_ops([replace(forged[2], offset=3)])
    assert ledger.dropped.take(60_999) is None
    assert ledger.dropped.take(61_000) == (1, replace(forged[2], offset=3))
    assert ledger.dropped.take(1_000_000) is None


def test_a_verdict_overrules_a_producer_in_either_order() -> None:
    for records in itertools.permutations([op(5, commit(1, 0)), verdict(5, rollback(1, 0))]):
        ledger = new_ledger(ops=records)
        ledger.read_halves([half(0, 1)])
        assert take(ledger) == []
        assert ledger.checkpoints().half == HalfCheckpoint(1, 1)


def test_nobody_is_asked_about_before_verdicts_were_read() -> None:
    ledger = new_ledger(verdict_checkpoint=OpCheckpoint(0, 0), halves=[half(0, 1)])
    ledger.overdue.ops_read_until(10**9)
    assert ledger.needs_op_end(10**9)
    assert ledger.take_due(10**9) == []
    ledger.overdue.ops_read_until(10**9, verdict=True)
    assert not ledger.needs_op_end(10**9)
    assert [request.transaction_id for request in ledger.take_due(10**9)] == [transaction_id(1)]


MANY = ParkingPolicy(pending_max=10 * FAR)
"""What pends is no limit."""


def test_with_nothing_unsettled_the_window_begins_at_the_next_half() -> None:
    ledger = new_ledger(HalfCheckpoint(70, 70), parking=MANY)
    assert ledger.read_limit(70) == 70 + WINDOW
    assert ledger.read_limit(500) == 500 + WINDOW, "offsets may have gaps"


def test_the_window_begins_at_the_lowest_unsettled_half() -> None:
    ledger = new_ledger(parking=MANY, halves=(half(offset, offset) for offset in range(10, 10 + FEW)))
    assert ledger.read_limit(10 + FEW) == 10 + WINDOW
    ledger.read_ops([op(0, commit(10, 10))])
    assert take(ledger) == [10]
    assert ledger.read_limit(10 + FEW) == 11 + WINDOW


def every_other(ledger: Ledger, start: int, stop: int) -> None:
    """Halves of which every other one is delivered, so that each of the rest is a run of its own."""
    ledger.read_halves(half(offset, offset) for offset in range(start, stop))
    ledger.read_ops([op(start, *(commit(offset, offset) for offset in range(start + 1, stop, 2)))])
    take(ledger)


def test_a_full_window_stops_the_reading_until_its_lowest_half_is_settled() -> None:
    ledger = new_ledger()
    every_other(ledger, 0, WINDOW)
    assert ledger.read_limit(WINDOW) == WINDOW
    assert ledger.checkpoints().half.encode(TOPIC_ID, 0)
    ledger.read_ops([op(WINDOW, rollback(0, 0))])
    assert ledger.read_limit(WINDOW) == WINDOW + 2


def test_reading_stops_when_as_much_pends_as_may() -> None:
    ledger = new_ledger(parking=ParkingPolicy(pending_max=100), halves=(half(offset, offset) for offset in range(40)))
    assert ledger.read_limit(40) == 100
    ledger.read_halves(half(offset, offset) for offset in range(40, 100))
    assert ledger.read_limit(100) == 100
    ledger.read_ops([op(0, commit(7, 7))])
    assert take(ledger) == [7]
    assert ledger.read_limit(100) == 101


def test_a_restored_full_window_can_be_read_again_and_no_further() -> None:
    ledger = new_ledger(halves=(half(offset, offset) for offset in range(WINDOW)))
    ledger.read_ops([op(0, *(commit(number, number) for number in range(1, WINDOW, 2)))])
    assert len(take(ledger)) == WINDOW // 2
    again = restored(ledger)
    assert again.checkpoints().half == ledger.checkpoints().half, "before anything was read"
    for start in range(0, WINDOW, 5_000):
        assert again.read_limit(start) == WINDOW
        again.read_halves(half(offset, offset) for offset in range(start, start + 5_000))
    assert again.checkpoints().half == ledger.checkpoints().half
    assert again.read_limit(WINDOW) == WINDOW
    assert len(again.pending) == WINDOW // 2


def test_one_undecided_half_does_not_stop_a_busy_partition() -> None:
    """Run lengths can say where a few unsettled halves lie, however far the head is."""
    head = WINDOW - 1_000
    ledger = new_ledger(HalfCheckpoint(0, head, runs_of([0])), halves=[half(0, 0), half(head - 1, 1)])
    while head < WINDOW + 4_000:
        limit = min(ledger.read_limit(head), head + 1_000)
        assert limit > head
        ledger.read_halves(half(offset, offset) for offset in range(head, limit))
        assert ledger.checkpoints().half.encode(TOPIC_ID, 0), "whatever happens next"
        ledger.read_ops([op(head, *(commit(number, number) for number in range(head, limit)))])
        assert len(take(ledger)) == limit - head
        head = limit
    assert ledger.checkpoints().half.unsettled == runs_of([0])
    assert restored(ledger).read_limit(0) == head, "all of it can be read again"


def test_malformed_half_beyond_checkpoint_space_waits() -> None:
    """After a crash it would be read again, and go to the discard topic a second time."""
    ledger = new_ledger(parking=MANY)
    end = WINDOW + 2_000
    ledger.read_halves(half(offset, offset) for offset in range(end))
    ledger.read_halves([damaged(end), half(end + 1, end + 1)])
    others = range(2, 2 * FEW, 2)
    ledger.read_ops([op(0, *(commit(offset, offset) for offset in others))])
    assert take(ledger) == list(others)
    assert len(ledger.checkpoints().half.unsettled) == FEW
    assert ledger.take_malformed() == []
    ledger.read_ops([op(1, commit(0, 0), commit(1, 1))])
    assert take(ledger) == [0, 1]
    assert [found.offset for found in ledger.take_malformed()] == [end]
    assert ledger.checkpoints().half.encode(TOPIC_ID, 0)


def test_transaction_beyond_checkpoint_space_keeps_its_order() -> None:
    """A long run of pending halves, decided in any order: no more holes than can be said, and all are delivered."""
    numbers = list(range(WINDOW + 3_000))
    ledger = new_ledger(parking=MANY)
    ledger.read_halves(half(offset, offset, key=str(offset % 5_000).encode()) for offset in numbers)
    decided = [*numbers]
    random.Random(3).shuffle(decided)
    ledger.read_ops([op(0, *(commit(offset, offset) for offset in decided))])
    delivered: list[int] = []
    for _ in range(1_000):
        delivered += take(ledger, 500)
        assert ledger.checkpoints().half.encode(TOPIC_ID, 0)
        if len(delivered) == len(numbers):
            break
    assert sorted(delivered) == numbers
    place = {offset: index for index, offset in enumerate(delivered)}
    assert all(place[offset] > place[offset - 5_000] for offset in numbers[5_000:])
    assert ledger.checkpoints().half == HalfCheckpoint(len(numbers), len(numbers))


def test_the_holes_that_a_scattered_transaction_will_leave_are_reserved() -> None:
    """Otherwise it could come to be the lowest one, and not be settled for want of room."""
    ledger, scattered = new_ledger(parking=MANY), range(0, 300, 2)
    ledger.read_halves(
        half(offset, 10**6, offset, key=None) if offset in scattered else half(offset, offset, key=None)
        for offset in range(WINDOW + 1)
    )
    head, room = WINDOW + 1, FEW - len(scattered)
    assert ledger.read_limit(head) == head + room
    ledger.read_ops([op(0, *(commit(offset, offset) for offset in range(301, head, 2)))])
    assert len(take(ledger)) == room
    assert ledger.read_limit(head) == head
    ledger.read_ops([op(1, entry(COMMIT, 10**6, ",".join(map(str, scattered)), 0, 298))])
    assert 10**6 in take(ledger)
    assert ledger.checkpoints().half.encode(TOPIC_ID, 0)


def test_the_head_never_runs_further_ahead_than_a_checkpoint_can_say() -> None:
    ledger = new_ledger(HalfCheckpoint(0, FAR - 10, runs_of([0])))
    assert ledger.read_limit(FAR - 10) == FAR
    with pytest.raises(CheckpointError):
        HalfCheckpoint(0, FAR + 1, runs_of([0])).encode(TOPIC_ID, 0)


def test_delivered_above_undecided_half_is_not_redelivered() -> None:
    """The checkpoint names what was delivered behind its head, also after a crash."""
    ledger = new_ledger()
    halves = [half(0, 0, key=b"pinned"), *(half(offset, offset) for offset in range(1, 1_001))]
    ops = [op(0, *(commit(number, number) for number in range(1, 1_001)))]
    ledger.read_halves(halves)
    ledger.read_ops(ops)
    assert len(take(ledger)) == 1_000
    assert ledger.checkpoints().half == HalfCheckpoint(0, 1_001, runs_of([0]))
    again = restored(ledger)
    again.read_ops([op(1, commit(0, 0)), *(op(offset, commit(offset, offset)) for offset in range(2, 1_001))])
    again.read_halves(halves)
    assert take(again) == [0]
    assert again.checkpoints().half == HalfCheckpoint(1_001, 1_001)
    assert again.counts["op_lost"] == 0


def test_a_decision_that_waits_is_read_again_after_a_take_over() -> None:
    """Else what waits for a broker waits a minute longer, until the checker has answered (R85)."""
    ledger = new_ledger()
    halves = [half(0, 1, key=b"k"), half(1, 2, key=b"k")]
    ledger.read_halves(halves)
    ledger.read_ops([op(0, commit(2, 1)), op(1)])
    assert ledger.checkpoints().op == OpCheckpoint(0, 2)
    again = restored(ledger)
    again.read_halves(halves)
    again.read_ops([op(0, commit(2, 1)), op(1), op(2, commit(1, 0))])
    assert overdue(again) == []
    assert take(again) == [1, 2]
    assert again.checkpoints().op == OpCheckpoint(3, 3)


def test_of_decisions_that_wait_only_the_newest_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real topic may be missing for days; check-back answers for the others."""
    monkeypatch.setattr(relay.half.ledger.op_decisions, "READ_AGAIN", 2)
    ledger = new_ledger()
    halves = [half(0, 1, key=b"k"), half(1, 2, key=b"k"), half(2, 3, key=b"k")]
    ledger.read_halves(halves)
    ledger.read_ops([op(0, commit(2, 1)), op(1, commit(3, 2)), op(2)])
    assert ledger.checkpoints().op == OpCheckpoint(1, 3)
    again = restored(ledger)
    again.read_halves(halves)
    again.read_ops([op(1, commit(3, 2)), op(2)])
    assert overdue(again) == [transaction_id(1), transaction_id(2)]


def test_a_disputed_decision_is_not_read_again() -> None:
    ledger = new_ledger(halves=[half(0, 1), half(1, 2, key=b"k"), half(2, 2, 1, key=b"k")])
    ledger.read_ops([op(0, commit(2, 5)), op(1, rollback(2, 5))])
    assert ledger.checkpoints().op == OpCheckpoint(2, 2)


def test_what_was_due_before_a_restart_is_due_at_once_after_it() -> None:
    """Also if the new owner has read the op partition first: a relay that dies often would never ask."""
    ledger = new_ledger(halves=[half(0, 1, time=1_000)])
    again = restored(ledger)
    again.overdue.ops_read_until(1_000 + POLICY.transaction_timeout_ms)
    again.read_halves([half(0, 1, time=1_000)])
    assert overdue(again, 1_000 + POLICY.transaction_timeout_ms) == [transaction_id(1)]


def test_order_is_kept_across_a_crash() -> None:
    ledger = new_ledger()
    halves = [half(0, 1, key=b"k"), half(1, 2), half(2, 3, key=b"k")]
    ledger.read_halves(halves)
    ledger.read_ops([op(0, commit(2, 1))])
    assert take(ledger) == [2]
    again = restored(ledger)
    again.read_ops([op(1, commit(3, 2))])
    again.read_halves(halves)
    assert take(again) == []
    again.read_ops([op(2, commit(1, 0))])
    assert take(again) == [1, 3]


def test_a_crash_between_the_halves_of_a_transaction_keeps_it_whole() -> None:
    ledger = new_ledger(halves=[half(0, 1, 0)], ops=[op(0, entry(COMMIT, 1, "0-1", 0, 1))])
    again = restored(ledger)
    again.read_halves([half(0, 1, 0), half(1, 1, 1)])
    assert take(again) == []
    assert overdue(again) == [transaction_id(1)]
    again.read_ops([op(1, entry(COMMIT, 1, "0-1", 0, 1), source=CHECKER)])
    (transaction,) = taken_ready(again, ALL)
    assert offsets(transaction) == [0, 1]


def test_nobody_is_asked_before_time_and_op_partition_are_past_the_timeout() -> None:
    ledger = new_ledger(halves=[half(0, 1, time=1_000)])
    due = 1_000 + POLICY.transaction_timeout_ms
    assert ledger.overdue.next_due() == due
    assert not ledger.take_due(LATE)
    ledger.read_ops([op(0, commit(9, 90), time=due - 1)])
    assert ledger.needs_op_end(due)
    assert not ledger.take_due(LATE)
    ledger.read_ops([op(1, commit(9, 90), time=due)])
    assert not ledger.needs_op_end(due)
    assert not ledger.take_due(due - 1)
    assert len(ledger.take_due(due)) == 1


def test_an_end_of_the_op_partition_seen_past_the_timeout_is_as_good() -> None:
    ledger = new_ledger(halves=[half(0, 1, time=1_000)])
    ledger.overdue.ops_read_until(7_000)
    assert len(ledger.take_due(7_000)) == 1


def test_the_immunity_time_of_the_first_half_replaces_the_timeout() -> None:
    ledger = new_ledger()
    ledger.read_halves(
        [
            half(0, 1, 0, options=HalfOptions(immunity=60_000), time=1_000),
            half(1, 1, 1, time=1_000),
            half(2, 2, options=HalfOptions(immunity=0), time=1_000),
        ]
    )
    assert overdue(ledger, 1_000) == [transaction_id(2)]
    assert transaction_id(1) not in overdue(ledger, 60_999)
    assert transaction_id(1) in overdue(ledger, 61_000)


def test_a_request_says_what_was_read_and_comes_back_unharmed() -> None:
    incarnation = "c0ffee00-1234-4abc-9def-0123456789ab"
    ledger = new_ledger()
    options = HalfOptions(incarnation=incarnation)
    ledger.read_halves([half(4, 1, 3, options=options), half(6, 1, 0, options=options), half(7, 2)])
    ledger.overdue.ops_read_until(LATE)
    request, _ = ledger.take_due(LATE)
    assert parse_check(request.encode()) == request
    assert (request.transaction_id, request.service, request.truth) == (transaction_id(1), "orders", Truth.ROW)
    assert (request.topic_id, request.partition) == (TOPIC_ID, PARTITION)
    assert (str(request.positions), request.first_offset, request.last_offset) == ("0,3", 4, 6)
    assert (request.check, request.incarnation, request.message) == (1, incarnation, None)


def test_only_listeners_are_sent_the_message() -> None:
    ledger = new_ledger(halves=[half(0, 1, truth=Truth.LISTENER), half(1, 1, 1, truth=Truth.LISTENER)])
    ledger.overdue.ops_read_until(LATE)
    (request,) = ledger.take_due(LATE)
    assert request.message is not None
    assert (request.message.offset, request.message.value) == (0, b"value")


def test_an_unknown_answer_counts_once_and_moves_the_number_of_the_check() -> None:
    ledger = new_ledger(halves=[half(0, 1, truth=Truth.LISTENER)])
    answers = [entry(UNKNOWN, 1, "0", 0, 0, checks=checks, reason=f"answer {checks}") for checks in (1, 1, 3, 2)]
    ledger.read_ops([op(0, *answers, source=LISTENER)])
    assert ledger.counts["unknown_listener"] == 4
    ledger.overdue.ops_read_until(LATE)
    (request,) = ledger.take_due(LATE)
    assert request.check == 4, "after a hand-over it goes on where the former owner was"


def test_an_answer_of_a_former_owners_check_decides() -> None:
    ledger = new_ledger(halves=[half(0, 1)])
    again = restored(ledger)
    again.read_halves([half(0, 1)])
    again.read_ops([op(0, commit(1, 0), source=CHECKER)])
    assert take(again) == [1]


def test_every_interleaving_delivers_each_once_in_order() -> None:
    """Two transactions of one key, three halves, three ops, each interleaving, a crash or commit anywhere."""
    halves = [half(0, 1, 0, key=b"k"), half(1, 2, 0, key=b"k"), half(2, 1, 1, key=b"k")]
    ops = [op(0, commit(2, 1)), op(1, entry(COMMIT, 1, "0-1", 0, 2)), op(2, commit(2, 1), source=CHECKER)]
    seen: set[str] = set()
    for reads in sorted(set(itertools.permutations("hhhooo"))):
        for then in itertools.product(("", "commit", "crash"), repeat=6):
            _run(halves, ops, [*zip(reads, then, strict=True)], seen)


def _run(halves: list[Half], ops: list[OpRecord], steps: list[tuple[str, str]], seen: set[str]) -> None:
    ledger = new_ledger()
    saved = (ledger.checkpoints().half, ledger.checkpoints().op)
    delivered: list[int] = []
    read = {"h": 0, "o": 0}
    for number, (kind, after) in enumerate(steps, 1):
        read[kind] += 1
        ledger.read_halves(halves[: read["h"]])
        ledger.read_ops(ops[: read["o"]])
        taken = take(ledger) if after else []
        if after == "commit":
            delivered += taken
            saved = (ledger.checkpoints().half, ledger.checkpoints().op)
        elif after == "crash":
            ledger, to_come = new_ledger(*saved), f"{saved} {delivered} {read} {steps[number:]}"
            if to_come in seen:
                return
            seen.add(to_come)
    ledger.read_halves(halves)
    ledger.read_ops(ops)
    delivered += take(ledger)
    answers = {1: entry(COMMIT, 1, "0-1", 0, 2), 2: commit(2, 1)}
    for offset, id_ in enumerate(overdue(ledger), 3):
        ledger.read_ops([op(offset, answers[int(id_[-12:], 16)], source=CHECKER)])
    delivered += take(ledger)
    assert delivered == [1, 2]
    assert ledger.checkpoints().half == HalfCheckpoint(3, 3)


def test_pending_are_those_that_are_undecided_or_behind_an_earlier_one() -> None:
    ledger = new_ledger(halves=[half(offset, number, key=b"k") for offset, number in enumerate((1, 2, 3, 4))])
    ledger.read_halves([half(4, 5, key=b"other")])
    ledger.read_ops([op(0, commit(2, 1), commit(4, 3), commit(5, 4))])
    assert len(ledger.pending) == 5
    ledger.read_ops([op(1, commit(1, 0))])
    assert take(ledger) == [5, 1, 2]
    assert len(ledger.pending) == 2
    ledger.read_ops([op(2, rollback(3, 2))])
    assert take(ledger) == [4]
    assert len(ledger.pending) == 0
    assert ledger.counts["rolled_back"] == 1


def test_the_oldest_pending_is_the_first_that_was_appended() -> None:
    ledger = new_ledger()
    assert ledger.oldest_pending() is None
    ledger.read_halves([half(0, 1), half(1, 2)])
    first, second = half(0, 1).append_time, half(1, 2).append_time
    assert ledger.oldest_pending() == first
    ledger.read_ops([op(0, rollback(1, 0))])
    assert ledger.oldest_pending() == second
    assert ledger.progress.head() == 2


def test_what_is_owed_goes_by_half_not_by_transaction() -> None:
    """A copy that comes when all is settled pends again; what was delivered is not owed for that."""
    ledger = new_ledger(halves=[half(0, 7)])
    assert is_owed(ledger, transaction_id(7), 0)
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 7, "0", 0, 0))])
    taken_ready(ledger, 10)
    assert not is_owed(ledger, transaction_id(7), 0)
    ledger.read_halves([half(1, 7)])
    assert is_owed(ledger, transaction_id(7), 1)
    assert not is_owed(ledger, transaction_id(7), 0)
