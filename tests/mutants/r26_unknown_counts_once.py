"""R26: an answer UNKNOWN counts once, by the number of the check that it answers.

Ops are read again after each hand-over, and answers come twice. If each reading counts, a transaction is given up
undecided after a few restarts of the relay, out of its order, though nobody was asked `check_max` times.
"""

from __future__ import annotations

from outbox.protocol.op import OpEntry
from relay.ledger.op_decisions import Decisions
from relay.state.message_transaction import Transaction
from tests.mutants.runner.mutant import Harm, Mutant


def _count_unknown(self: Decisions, transaction: Transaction, entry: OpEntry) -> None:
    """One more."""
    self._counts["unknown"] += 1
    transaction.unknown_answers += 1
    transaction.last_answer = entry.reason
    self._parking.answered_unknown(transaction)


MUTANT = Mutant(
    "R26",
    Harm.OUT_OF_ORDER,
    Decisions._count_unknown,
    _count_unknown,
    ("tests/unit/relay/test_ledger.py::test_an_unknown_answer_counts_once_and_moves_the_number_of_the_check",),
)
