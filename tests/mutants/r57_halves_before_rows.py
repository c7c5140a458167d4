"""R57: rows of auto mode wait until earlier halves of their lane are settled.

Without it a transaction that fell back to rows is delivered before an earlier one of the same key, whose halves are
committed and not delivered yet.
"""

from __future__ import annotations

from relay.tables.half_order import HalfOrder
from relay.tables.rows import RowTransaction
from tests.mutants.runner.mutant import Harm, Mutant


def waits(self: HalfOrder, transaction: RowTransaction) -> bool:
    """Let everything go."""
    del self, transaction
    return False


MUTANT = Mutant(
    "R57",
    Harm.OUT_OF_ORDER,
    HalfOrder.waits,
    waits,
    (
        "tests/unit/relay/test_table_admission.py::test_a_row_of_mode_auto_waits_for_earlier_halves_of_its_lane",
        "tests/unit/relay/test_table_admission.py::test_halves_are_marked_when_their_end_is_read_after_the_row",
        "tests/unit/relay/test_table_admission.py::test_each_lane_keeps_its_order_across_both_ways",
    ),
)
