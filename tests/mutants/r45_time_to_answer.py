"""R45: a listener has had time to answer before its transaction is parked for its age.

Without it, a relay that comes back after hours parks what a running listener would decide within seconds.
"""

from __future__ import annotations

from outbox.protocol.half import Truth
from relay.state.message_transaction import Transaction
from relay.state.parking import Parking
from tests.mutants.runner.mutant import Harm, Mutant


def _age_limit(self: Parking, transaction: Transaction) -> int:
    """Return the age, however seldom the listener was asked."""
    age = self._policy.undecided_max_age_ms
    return min(age, self._policy.listener_max_age_ms) if transaction.truth is Truth.LISTENER else age


MUTANT = Mutant(
    "R45",
    Harm.OUT_OF_ORDER,
    Parking._age_limit,
    _age_limit,
    ("tests/unit/relay/test_parking.py::test_listener_that_had_no_time_to_answer_is_not_parked",),
)
