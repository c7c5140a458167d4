"""What an operator may decide: the table is whole, and nothing in it contradicts the one who knows the truth."""

from dataclasses import replace

import pytest

from outbox._rules.callback_row import Row
from outbox.operator.state.rulings import RULINGS, DecisionStep, SourceState, of_listener, of_row
from outbox.operator.state.unsettled_transactions import RecordedDecision, UnsettledTransaction
from outbox.protocol.half import Truth
from outbox.protocol.op import OpKind, OpSource
from outbox.protocol.positions import Positions

VERBS = (OpKind.COMMIT, OpKind.ROLLBACK)
TOPIC = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
AGREES = {
    OpKind.COMMIT: {SourceState.COMMITTED, SourceState.LISTENER_COMMITTED},
    OpKind.ROLLBACK: {SourceState.ROLLED_BACK, SourceState.LISTENER_ROLLED_BACK},
}


def test_there_is_a_ruling_for_every_case() -> None:
    assert set(RULINGS) == {(kind, standing) for kind in VERBS for standing in SourceState}
    assert all(ruling.why for ruling in RULINGS.values())


@pytest.mark.parametrize("kind", VERBS)
def test_a_row_is_placed_only_where_there_is_none_and_nothing_is_open(kind: OpKind) -> None:
    placed = {standing for standing in SourceState if RULINGS[kind, standing].step is DecisionStep.PLACE}
    assert placed == {SourceState.NO_ROW}


@pytest.mark.parametrize("kind", VERBS)
def test_op_marker_alone_agrees_or_is_of_listener(kind: OpKind) -> None:
    """It repeats what the database or the listener answers, or the listener has not answered yet."""
    marked = {standing for standing in SourceState if RULINGS[kind, standing].step is DecisionStep.MARK}
    assert marked == AGREES[kind] | {SourceState.LISTENER}


def _unsettled(truth: Truth, *kinds: OpKind) -> UnsettledTransaction:
    said = [RecordedDecision(kind, OpSource.LISTENER, offset, 1) for offset, kind in enumerate(kinds)]
    return UnsettledTransaction("id", "orders", truth, 0, 1, decisions=said)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), SourceState.LISTENER),
        ((OpKind.COMMIT, OpKind.COMMIT), SourceState.LISTENER_COMMITTED),
        ((OpKind.ROLLBACK,), SourceState.LISTENER_ROLLED_BACK),
        ((OpKind.COMMIT, OpKind.ROLLBACK), SourceState.LISTENER),  # disputed: somebody must say
    ],
)
def test_a_listener_is_taken_at_its_word(kinds: tuple[OpKind, ...], expected: SourceState) -> None:
    assert of_listener(_unsettled(Truth.LISTENER, *kinds)) is expected
    assert of_listener(_unsettled(Truth.ROW, *kinds)) is None


def test_a_row_is_taken_at_its_word() -> None:
    def row(topic_id: str, *, committed: bool) -> Row:
        return Row(committed, topic_id, 0, 1, 1, Positions.first(1))

    assert of_row(row(TOPIC, committed=True), TOPIC) is SourceState.COMMITTED
    assert of_row(row(TOPIC, committed=False), TOPIC) is SourceState.ROLLED_BACK
    assert of_row(row("another", committed=True), TOPIC) is SourceState.ELSEWHERE
    assert of_row(row("another", committed=False), TOPIC) is SourceState.ROLLED_BACK
    assert of_row(replace(row(TOPIC, committed=True), damage="x"), TOPIC) is SourceState.DAMAGED
