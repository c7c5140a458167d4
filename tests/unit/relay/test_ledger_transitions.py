"""The table of what may happen to a transaction: all of it happens, and nothing else does."""

import itertools

import pytest

from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from relay.delivery.rules.outgoing import Finding
from relay.half.state.message_transaction import TRANSITIONS, Event, State, Transaction
from tests.support.ledger_model import entry, half, new_ledger, op, taken_ready, transaction_id

OPS = [
    (entry(kind, 1, positions, 0, last), source)
    for kind, source, (positions, last) in itertools.product(
        (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN),
        (OpSource.PRODUCER, OpSource.LISTENER, OpSource.CHECKER),
        (("0-1", 8), ("0", 9)),
    )
]


def outcome(ops: tuple[tuple[OpEntry, OpSource], ...]) -> OpEntry | None:
    """The decision that stands after these ops, by the rule: who saw the row wins, among the others all must agree."""
    decisions = [(found, source) for found, source in ops if found.kind is not OpKind.UNKNOWN]
    wise = [found for found, source in decisions if source is OpSource.CHECKER]
    if wise:
        return wise[-1]
    kinds = {(found.kind, str(found.positions) if found.kind is OpKind.COMMIT else "") for found, _ in decisions}
    return decisions[-1][0] if len(kinds) == 1 else None


def _judge_all(repeat: int) -> None:
    """Read all sequences of so many ops on a transaction whose last half was not read yet."""
    for ops in itertools.product(OPS, repeat=repeat):
        ledger = new_ledger(halves=[half(0, 1)])
        ledger.read_ops(op(offset, found, source=source) for offset, (found, source) in enumerate(ops))
        transaction = ledger.pending.by_id[transaction_id(1)]
        expected = outcome(ops)
        if expected is None:
            assert (transaction.decision, transaction.state) == (None, State.PENDING)
        else:
            assert transaction.decision is not None
            assert transaction.decision.kind is expected.kind
            assert expected.kind is OpKind.ROLLBACK or transaction.decision == expected
            assert transaction.state is (State.COMMITTED if expected.kind is OpKind.COMMIT else State.ROLLED_BACK)


def test_row_outweighs_ops_and_disputed_ops_decide_nothing() -> None:
    _judge_all(3)


def test_every_transition_of_the_table_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[State, Event]] = set()
    move = Transaction.move

    def spy(transaction: Transaction, event: Event) -> None:
        seen.add((transaction.state, event))
        move(transaction, event)

    monkeypatch.setattr(Transaction, "move", spy)
    _judge_all(2)
    ledger = new_ledger(halves=[half(0, 1), half(1, 2)])
    ledger.read_ops([op(0, entry(OpKind.COMMIT, 1, "0", 0, 0), entry(OpKind.COMMIT, 2, "-", -1, -1))])
    (transaction,) = taken_ready(ledger, 1)
    for number, kind in enumerate((OpKind.DELIVER, OpKind.ROLLBACK), 1):
        ledger.refuse(transaction, Finding(DiscardReason.TOPIC_MISSING, ""))
        ledger.read_ops([op(number, entry(kind, 1, "0", 0, 0), source=OpSource.OPERATOR)])
        transaction = next(iter(taken_ready(ledger, 1)), transaction)
    ledger.read_halves([half(2, 3)])
    ledger.overdue.ops_read_until(10**12)
    ledger.take_parked(10**12, 1)
    assert seen == set(TRANSITIONS)


@pytest.mark.parametrize(("state", "event"), sorted(set(itertools.product(State, Event)) - set(TRANSITIONS)))
def test_what_is_not_in_the_table_is_an_error(state: State, event: Event) -> None:
    transaction = Transaction(transaction_id(1), "orders", Truth.ROW, None, None, 0, state=state)
    with pytest.raises(KeyError):
        transaction.move(event)
