"""R56: a snapshot that may be older than a row of the lane sends a transaction of auto mode to the message table.

Under REPEATABLE READ a transaction does not find the row that was committed after its first statement. Without the rule
it goes to Kafka, and is delivered before that row.
"""

from __future__ import annotations

from outbox._auto import auto_seal
from outbox._auto.fallback_rows import Look
from outbox.recorder import FallbackReason
from tests.mutants.runner.mutant import Harm, Mutant


def why_behind_rows(look: Look | None) -> FallbackReason | None:
    """Trust every snapshot."""
    return FallbackReason.EARLIER_ROWS if look is not None and look.rows_wait else None


MUTANT = Mutant(
    "R56",
    Harm.OUT_OF_ORDER,
    auto_seal.why_behind_rows,
    why_behind_rows,
    (
        "tests/unit/outbox/test_auto_seal.py::test_what_is_found_decides_the_way",
        "tests/integration/library/test_auto_mode.py::test_a_snapshot_that_may_be_too_old_sends_a_lane_to_the_table",
    ),
)
