"""R45: a listener transaction that nobody answers for is parked after its own age, not after that of rows.

Without it, the first undecided transaction of a group whose listener is gone blocks its ordering key for a day.
"""

from __future__ import annotations

from relay.state.message_transaction import Transaction
from relay.state.parking import Parking
from tests.mutants.runner.mutant import Harm, Mutant


def _age_limit(self: Parking, transaction: Transaction) -> int:
    """Return the same age for each."""
    del transaction
    return self._policy.undecided_max_age_ms


MUTANT = Mutant(
    "R45",
    Harm.STUCK,
    Parking._age_limit,
    _age_limit,
    ("tests/unit/relay/test_parking.py::test_listener_without_answer_is_parked_after_its_own_age",),
)
