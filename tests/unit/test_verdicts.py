"""Verdicts, and the op markers that follow from them."""

from __future__ import annotations

import pytest

from checker.verdicts import CONSEQUENCES, NEEDS_SOMEBODY, NO_ROW, Row, Verdict, op_entry
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.op import NO_OFFSET, OpEntry, OpKind, OpSource, encode_op, parse_op
from outbox.protocol.positions import Positions
from tests.unit import protocol_strategies as some
from tests.unit.protocol_documents import OTHER_TRANSACTION, TOPIC, TRANSACTION

REQUEST = CheckRequest(TRANSACTION, "shop", Truth.ROW, TOPIC, 3, Positions.of([0, 7]), 100, 109, 4)
ROW = Row(committed=True, topic_id=TOPIC, partition=3, first_offset=100, last_offset=104, positions=Positions.first(3))
TOMBSTONE = Row(
    committed=False, topic_id=TOPIC, partition=3, first_offset=100, last_offset=100, positions=Positions.first(1)
)


def test_every_verdict_has_a_consequence() -> None:
    assert CONSEQUENCES.keys() == set(Verdict)


def test_only_a_row_decides() -> None:
    deciding = {verdict: kind for verdict, kind in CONSEQUENCES.items() if kind not in {None, OpKind.UNKNOWN}}
    assert deciding == {Verdict.COMMITTED: OpKind.COMMIT, Verdict.FENCED: OpKind.ROLLBACK}


def test_nobody_needs_to_look_at_what_heals_by_itself() -> None:
    assert NEEDS_SOMEBODY.isdisjoint({Verdict.COMMITTED, Verdict.FENCED, Verdict.IN_FLIGHT, Verdict.UNREACHABLE})
    assert all(CONSEQUENCES[verdict] is None for verdict in NEEDS_SOMEBODY)


@pytest.mark.parametrize("verdict", [verdict for verdict, kind in CONSEQUENCES.items() if kind is None])
@pytest.mark.parametrize("row", [None, ROW, TOMBSTONE])
def test_without_a_decision_there_is_silence(verdict: Verdict, row: Row | None) -> None:
    assert op_entry(REQUEST, verdict, row) is None


def test_a_commit_says_what_the_row_says_not_what_the_relay_has_read() -> None:
    assert op_entry(REQUEST, Verdict.COMMITTED, ROW) == OpEntry(
        OpKind.COMMIT, TRANSACTION, TOPIC, 3, Positions.first(3), 100, 104
    )


@pytest.mark.parametrize("row", [None, TOMBSTONE])
def test_a_commit_without_the_applications_row_is_silence(row: Row | None) -> None:
    """What the relay has read so far may be a part of the transaction."""
    assert op_entry(REQUEST, Verdict.COMMITTED, row) is None


@pytest.mark.parametrize("row", [None, TOMBSTONE])
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
    row = Row(
        committed=True,
        topic_id=OTHER_TRANSACTION,
        partition=3,
        first_offset=100,
        last_offset=104,
        positions=Positions.first(3),
    )
    assert op_entry(REQUEST, Verdict.COMMITTED, row) is None


def test_without_a_row_where_the_checker_may_not_write_the_answer_carries_the_number_of_the_check() -> None:
    """So the relay counts it, once, as a listener's."""
    entry = op_entry(REQUEST, Verdict.UNKNOWN, None)
    assert entry is not None
    assert (entry.kind, entry.checks, entry.reason) == (OpKind.UNKNOWN, REQUEST.check, NO_ROW)
    assert (entry.positions, entry.first_offset, entry.last_offset) == (REQUEST.positions, 100, 109)


@pytest.mark.parametrize(
    ("verdict", "row"), [(Verdict.COMMITTED, ROW), (Verdict.FENCED, TOMBSTONE), (Verdict.UNKNOWN, None)]
)
def test_every_answer_can_be_read_by_the_relay(verdict: Verdict, row: Row) -> None:
    entry = op_entry(REQUEST, verdict, row)
    assert entry is not None
    value, headers = encode_op([entry], OpSource.CHECKER)
    assert parse_op(value, some.consumed(headers)) == (OpSource.CHECKER, [entry])
    assert (entry.topic_id, entry.partition) == (REQUEST.topic_id, REQUEST.partition)
