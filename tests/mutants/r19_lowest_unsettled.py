"""R19: the committed offset is the lowest unsettled half, not the head.

With the head, an undecided half is behind the committed offset: the next owner never reads it again, and its message is
lost when its transaction commits.
"""

from __future__ import annotations

from outbox.protocol.checkpoint import HalfCheckpoint
from relay.ledger.partition_progress import Progress
from tests.mutants.runner.mutant import Harm, Mutant


def half_checkpoint(self: Progress) -> HalfCheckpoint:
    """How far was read."""
    return HalfCheckpoint(self.head(), self.head())


MUTANT = Mutant(
    "R19",
    Harm.LOST,
    Progress.half_checkpoint,
    half_checkpoint,
    (
        "tests/unit/relay/test_ledger.py::test_an_undecided_half_pends",
        "tests/unit/relay/test_ledger.py::test_order_is_kept_across_a_crash",
        "tests/unit/relay/test_ledger.py::test_a_crash_between_the_halves_of_a_transaction_keeps_it_whole",
    ),
)
