"""R44: a decided transaction waits for those of its halves that are deferred.

Without the rule it is taken for one that lacks a position, and is discarded as INCOMPLETE although all of its halves
are in the half topic.
"""

from __future__ import annotations

from outbox.protocol.op import OpEntry
from relay.ledger.deliveries import Deliveries
from relay.state.message_transaction import Transaction
from tests.mutants.runner.mutant import Harm, Mutant


def _is_read(self: Deliveries, transaction: Transaction, decision: OpEntry) -> bool:
    """Only look at the head."""
    del transaction
    return decision.last_offset < self._progress.next_half


MUTANT = Mutant(
    "R44",
    Harm.LOST,
    Deliveries._is_read,
    _is_read,
    ("tests/unit/relay/test_parking.py::test_transaction_waits_for_its_deferred_halves",),
)
