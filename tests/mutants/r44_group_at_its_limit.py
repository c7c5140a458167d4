"""R44: a producer group at its limit holds up nobody.

Without the rule its halves are kept until the half partition is full. Then nothing is read until they are parked, and
another group's committed message waits so long.
"""

from __future__ import annotations

from relay.state.parking import Parking
from tests.mutants.runner.mutant import Harm, Mutant


def _never(self: Parking, group: str) -> bool:
    """Keep all that was read."""
    del self, group
    return False


MUTANT = Mutant(
    "R44",
    Harm.STUCK,
    Parking.is_full,
    _never,
    (
        "tests/unit/relay/test_parking.py::test_group_at_its_limit_does_not_hold_up_others",
        "tests/unit/relay/test_parking.py::test_flood_is_deferred_after_a_restart_too",
    ),
)
