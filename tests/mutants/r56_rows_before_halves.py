"""R56: in auto mode a transaction goes to the message table while a row of its lane is there.

Without it a transaction goes to Kafka at once when Kafka is back, and is delivered before an earlier one of the same
key that still waits in the table.
"""

from __future__ import annotations

from outbox._auto import auto_seal
from outbox._auto.fallback_rows import Look
from outbox.recorder import FallbackReason
from tests.mutants.runner.mutant import Harm, Mutant


def why_behind_rows(look: Look | None) -> FallbackReason | None:
    """Look at the snapshot only."""
    return FallbackReason.ISOLATION if look is not None and look.in_doubt else None


MUTANT = Mutant(
    "R56",
    Harm.OUT_OF_ORDER,
    auto_seal.why_behind_rows,
    why_behind_rows,
    (
        "tests/unit/outbox/test_auto_seal.py::test_transaction_behind_a_row_of_its_lane_becomes_rows",
        "tests/integration/library/test_auto_mode.py::test_a_transaction_follows_the_rows_of_its_lane",
    ),
)
