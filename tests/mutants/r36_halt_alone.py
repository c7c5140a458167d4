"""R36: a half partition that cannot go on halts alone.

Without it one damaged checkpoint ends the relay, and each one that takes its place: all half partitions stand still.
"""

from __future__ import annotations

from relay.partitions.halts import Halts
from tests.mutants.runner.mutant import Harm, Mutant


def _any_cause(self: Halts, partitions: int) -> Exception | None:
    """End the relay for one halted partition."""
    return next(iter(self._causes.values()), None) if partitions else None


MUTANT = Mutant(
    "R36",
    Harm.STUCK,
    Halts.of_all,
    _any_cause,
    (
        "tests/unit/relay/test_halts.py::test_halts_of_some_partitions_leave_the_others",
        "tests/integration/relay/test_halts.py::test_damaged_checkpoint_halts_only_its_partition",
    ),
)
