"""R81: an unforeseen error halts the half partition that it is about.

Without it one record that meets a bug ends the relay, again after each restart: all tables and half partitions stand
still.
"""

from __future__ import annotations

from relay.serving.served import ServedPartitions
from tests.mutants.runner.mutant import Harm, Mutant


def _raise(self: ServedPartitions, number: int, error: BaseException) -> None:
    """End the relay."""
    del self
    raise RuntimeError(f"partition {number} failed") from error


MUTANT = Mutant(
    "R81",
    Harm.STUCK,
    ServedPartitions._halt_unforeseen,
    _raise,
    (
        "tests/unit/relay/test_served.py::test_a_worker_that_fails_unforeseen_halts_its_half_partition",
        "tests/unit/relay/test_served.py::test_a_take_over_that_fails_unforeseen_halts_its_half_partition",
    ),
)
