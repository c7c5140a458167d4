"""R31: what former transactions left open on a real topic is ended before anything is written there.

A broker without a leader for the partition has skipped the end of an aborted transaction. The next commit ends it too,
as committed, beside what was delivered in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from relay.recovery.hanging_transactions import OwnHangingTransactions
from tests.mutants.runner.mutant import Harm, Mutant


def _end(
    self: OwnHangingTransactions, topics: Mapping[str, int], in_hand: Collection[int] = frozenset()
) -> Mapping[str, str]:
    """Nothing will have been left."""
    del self, topics, in_hand
    return {}


MUTANT = Mutant(
    "R31",
    Harm.DOUBLED,
    OwnHangingTransactions.end,
    _end,
    ("tests/unit/relay/test_hanging_transactions.py::test_a_transaction_that_was_just_handed_out_is_owed",),
)
