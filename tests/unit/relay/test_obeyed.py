"""Decisions that contradict those that were obeyed, after their transactions were settled."""

import pytest

from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.op_decisions import GENERATION, Contradiction, Obeyed
from tests.support.ledger_model import half, new_ledger, op, taken_ready, transaction_id
from tests.unit.relay.test_ledger import commit, rollback

ID = transaction_id(1)


def _settled(first: OpEntry) -> Ledger:
    ledger = new_ledger(halves=[half(0, 1)], ops=[op(0, first)])
    taken_ready(ledger, 10)
    assert len(ledger.pending) == 0
    return ledger


@pytest.mark.parametrize(
    ("first", "later"),
    [(rollback(1, 0), commit(1, 0)), (commit(1, 0), rollback(1, 0))],
    ids=["rolled back", "delivered"],
)
def test_ledger_op_against_a_settled_decision_is_an_event(first: OpEntry, later: OpEntry) -> None:
    ledger = _settled(first)
    ledger.read_ops([op(1, later)])
    assert ledger.counts["op_contradicts_settled"] == 1
    assert ledger.decisions.take_contradictions() == [Contradiction(ID, first.kind, later.kind, OpSource.PRODUCER)]
    assert ledger.decisions.take_contradictions() == []


@pytest.mark.parametrize("first", [rollback(1, 0), commit(1, 0)], ids=["rolled back", "delivered"])
def test_ledger_op_that_repeats_a_settled_decision_is_no_event(first: OpEntry) -> None:
    ledger = _settled(first)
    ledger.read_ops([op(1, first), op(2, first)])
    assert (ledger.counts["op_settled"], ledger.counts["op_contradicts_settled"]) == (2, 0)
    assert ledger.decisions.take_contradictions() == []


def test_obeyed_of_an_unknown_transaction_contradicts_nothing() -> None:
    """As after a take-over: the settlement audit compares op markers and rows instead."""
    assert Obeyed().contradiction(OpSource.PRODUCER, commit(1, 0)) is None
    assert Obeyed().contradiction(OpSource.CHECKER, rollback(1, 0)) is None


def test_obeyed_of_both_kinds_contradicts_nothing() -> None:
    """As of a committed transaction that an operator dropped from the discard topic."""
    obeyed = Obeyed()
    obeyed.note(OpKind.COMMIT, ID)
    obeyed.note(OpKind.ROLLBACK, ID)
    assert obeyed.contradiction(OpSource.OPERATOR, rollback(1, 0)) is None


def test_obeyed_remembers_rollbacks_beside_many_commits() -> None:
    obeyed = Obeyed()
    obeyed.note(OpKind.ROLLBACK, ID)
    for number in range(2, 2 + 3 * GENERATION):
        obeyed.note(OpKind.COMMIT, transaction_id(number))
    assert obeyed.contradiction(OpSource.PRODUCER, commit(1, 0)) is not None
    assert obeyed.contradiction(OpSource.PRODUCER, rollback(3 * GENERATION, 0)) is not None
    assert obeyed.contradiction(OpSource.PRODUCER, rollback(2, 0)) is None, "it is forgotten: memory is bounded"
