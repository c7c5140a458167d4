"""R26: what lies in the discard topic undecided goes on being asked about, and comes back.

A transaction of which nobody heard for a day is parked. If its database comes back with a committed row and nobody asks
any more, its message stays where it is: lost.
"""

from __future__ import annotations

from relay.ledger.ledger import Ledger
from relay.state.discard_index import ParkedHalves
from relay.state.message_transaction import Transaction
from tests.mutants.runner.mutant import Harm, Mutant

_park = Ledger._park


def _park_and_forget(self: Ledger, transaction: Transaction, why: str) -> ParkedHalves:
    """Let an undecided transaction go, for good."""
    move = _park(self, transaction, why)
    transaction.due = -1  # so its entry on the clock is void
    return move


MUTANT = Mutant(
    "R26",
    Harm.LOST,
    Ledger._park,
    _park_and_forget,
    ("tests/unit/relay/test_discards.py::test_the_checker_is_asked_on_and_brings_it_back",),
)
