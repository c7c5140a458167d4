"""Verdicts, the op markers that follow from them, and the age of what has no decision."""

from dataclasses import replace

import pytest

from checker.rules.verdicts import CONSEQUENCES, FORGET_MS, MOST, NEEDS_SOMEBODY, Undecided, Verdict, of_row, op_entry
from outbox._rules.callback_row import Row, read_row
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import NO_OFFSET, OpEntry, OpKind, OpSource, encode_op, parse_op
from outbox.protocol.positions import Positions
from tests.support import protocol_strategies as some
from tests.support.protocol_documents import OTHER_TRANSACTION, TOPIC, TRANSACTION

REQUEST = CheckRequest(TRANSACTION, "shop", Truth.ROW, TOPIC, 3, Positions.of([0, 7]), 100, 109, 4)
ROW = Row(committed=True, topic_id=TOPIC, partition=3, first_offset=100, last_offset=104, positions=Positions.first(3))
ROLLBACK_ROW = replace(ROW, committed=False, last_offset=100, positions=Positions.first(1))


@pytest.mark.parametrize("positions", ["", "x", "0,0", "5-1", "0-99999999999", "0\n1", "\x1b[2J"])
def test_row_with_malformed_positions_is_damaged(positions: str) -> None:
    row = read_row("C", TOPIC, 3, 100, 104, positions)
    assert row.damage
    assert of_row(row, TOPIC) is Verdict.DAMAGED
    assert op_entry(REQUEST, Verdict.DAMAGED, row) is None


@pytest.mark.parametrize(("first", "last"), [(5, 1), (-5, -5), (NO_OFFSET, 3), (NO_OFFSET, NO_OFFSET)])
def test_row_whose_offsets_do_not_fit_is_damaged(first: int, last: int) -> None:
    row = read_row("C", TOPIC, 3, first, last, "0-2")
    assert row.damage == f"positions '0-2' do not fit the offsets {first} to {last}"
    assert of_row(row, TOPIC) is Verdict.DAMAGED


def test_rollback_row_that_is_damaged_is_a_rollback() -> None:
    assert of_row(read_row("R", TOPIC, 3, 5, 1, "x"), TOPIC) is Verdict.FENCED


def test_row_as_applications_write_it_is_read() -> None:
    assert read_row("C", TOPIC, 3, 100, 104, "0-2") == ROW
    assert read_row("C", TOPIC, 3, NO_OFFSET, NO_OFFSET, "-").damage == ""


def test_every_verdict_has_a_consequence() -> None:
    assert CONSEQUENCES.keys() == set(Verdict)


def test_only_a_row_decides() -> None:
    deciding = {verdict: kind for verdict, kind in CONSEQUENCES.items() if kind not in {None, OpKind.UNKNOWN}}
    assert deciding == {Verdict.COMMITTED: OpKind.COMMIT, Verdict.FENCED: OpKind.ROLLBACK}


def test_nobody_needs_to_look_at_what_heals_by_itself() -> None:
    assert NEEDS_SOMEBODY.isdisjoint({Verdict.COMMITTED, Verdict.FENCED, Verdict.IN_FLIGHT, Verdict.UNREACHABLE})
    assert all(CONSEQUENCES[verdict] is None for verdict in NEEDS_SOMEBODY)


@pytest.mark.parametrize("verdict", [verdict for verdict, kind in CONSEQUENCES.items() if kind is None])
@pytest.mark.parametrize("row", [None, ROW, ROLLBACK_ROW])
def test_without_a_decision_there_is_silence(verdict: Verdict, row: Row | None) -> None:
    assert op_entry(REQUEST, verdict, row) is None


def test_a_commit_says_what_the_row_says_not_what_the_relay_has_read() -> None:
    assert op_entry(REQUEST, Verdict.COMMITTED, ROW) == OpEntry(
        OpKind.COMMIT, TRANSACTION, TOPIC, 3, Positions.first(3), 100, 104
    )


@pytest.mark.parametrize("row", [None, ROLLBACK_ROW])
def test_a_commit_without_the_applications_row_is_silence(row: Row | None) -> None:
    """What the relay has read so far may be a part of the transaction."""
    assert op_entry(REQUEST, Verdict.COMMITTED, row) is None


@pytest.mark.parametrize("row", [None, ROLLBACK_ROW])
def test_a_rollback_lists_what_the_relay_has_read(row: Row | None) -> None:
    assert op_entry(REQUEST, Verdict.FENCED, row) == OpEntry(
        OpKind.ROLLBACK, TRANSACTION, TOPIC, 3, Positions.of([0, 7]), 100, 109
    )


def test_a_copy_in_another_partition_is_told_that_nothing_of_it_counts() -> None:
    """Else it would wait for ever: the row's own partition delivers."""
    row = Row(
        committed=True, topic_id=TOPIC, partition=4, first_offset=100, last_offset=104, positions=Positions.first(3)
    )
    entry = op_entry(REQUEST, Verdict.COMMITTED, row)
    assert entry == OpEntry(OpKind.COMMIT, TRANSACTION, TOPIC, 3, Positions(()), NO_OFFSET, NO_OFFSET)


def test_a_row_of_another_topic_decides_nothing_here() -> None:
    row = replace(ROW, topic_id=OTHER_TRANSACTION)
    assert op_entry(REQUEST, Verdict.COMMITTED, row) is None


@pytest.mark.parametrize(("verdict", "row"), [(Verdict.COMMITTED, ROW), (Verdict.FENCED, ROLLBACK_ROW)])
def test_every_answer_can_be_read_by_the_relay(verdict: Verdict, row: Row) -> None:
    entry = op_entry(REQUEST, verdict, row)
    assert entry is not None
    value, headers = encode_op([entry], OpSource.CHECKER)
    assert parse_op(value, some.consumed(headers), verdict=True) == (OpSource.CHECKER, [entry])
    assert (entry.topic_id, entry.partition) == (REQUEST.topic_id, REQUEST.partition)


NOW = 1_700_000_000_000
DECIDED = [verdict for verdict, kind in CONSEQUENCES.items() if kind in {OpKind.COMMIT, OpKind.ROLLBACK}]


def id_of(age_seconds: int, number: int = 0) -> str:
    return make_transaction_id(NOW - age_seconds * 1_000, number.to_bytes(10, "big"))


@pytest.mark.parametrize("verdict", sorted(set(Verdict) - set(DECIDED)))
def test_what_is_not_decided_grows_old(verdict: Verdict) -> None:
    undecided = Undecided()
    undecided.note({id_of(60): (verdict, None), id_of(7): (verdict, None)}, NOW)
    assert undecided.oldest_seconds(NOW + 5_000) == 65


@pytest.mark.parametrize("verdict", DECIDED)
def test_what_is_decided_is_forgotten(verdict: Verdict) -> None:
    undecided = Undecided()
    undecided.note({id_of(60): (Verdict.IN_FLIGHT, None), id_of(7): (Verdict.IN_FLIGHT, None)}, NOW)
    undecided.note({id_of(60): (verdict, None)}, NOW)
    assert undecided.oldest_seconds(NOW) == 7
    undecided.note({id_of(7): (verdict, None)}, NOW)
    assert undecided.oldest_seconds(NOW) == 0


def test_who_is_not_asked_about_any_more_is_forgotten() -> None:
    undecided = Undecided()
    undecided.note({id_of(60): (Verdict.IN_FLIGHT, None)}, NOW)
    undecided.note({}, NOW + FORGET_MS)
    assert undecided.oldest_seconds(NOW + FORGET_MS) == 0


def test_memory_is_bounded_and_no_clock_that_is_ahead_makes_an_age_negative() -> None:
    undecided = Undecided()
    undecided.note({id_of(-9, number): (Verdict.UNREACHABLE, None) for number in range(MOST + 5)}, NOW)
    assert len(undecided._asked) == MOST
    assert undecided.oldest_seconds(NOW) == 0
