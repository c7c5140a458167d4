"""R28: later transactions of a (producer group, ordering key) wait behind an undecided earlier one.

An earlier transaction whose op marker got lost waits for its check. If later ones pass it, consumers see the new state
of an order before the old one, and keep the old one: out of order.
"""

from __future__ import annotations

from relay.ledger.deliveries import Deliveries
from relay.state.message_transaction import State, Transaction
from tests.mutants.runner.mutant import Harm, Mutant


def _is_free(self: Deliveries, transaction: Transaction) -> bool:
    """Whether a transaction may go: committed, and read to its last half."""
    decision = transaction.decision
    if transaction.state is not State.COMMITTED or decision is None or decision.last_offset >= self._progress.next_half:
        return False
    return self._discards.is_whole(transaction) if transaction.discarded else self._pending.holds(transaction)


MUTANT = Mutant(
    "R28",
    Harm.OUT_OF_ORDER,
    Deliveries._is_free,
    _is_free,
    (
        "tests/unit/relay/test_ledger.py::test_one_ordering_key_keeps_the_order_of_first_halves",
        "tests/unit/relay/test_ledger.py::test_one_that_waits_for_its_halves_holds_its_ordering_key",
        "tests/unit/relay/test_ledger.py::test_order_is_kept_across_a_crash",
    ),
)
