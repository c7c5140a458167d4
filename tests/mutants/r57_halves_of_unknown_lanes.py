"""R57: a half whose lane is not known, or that the relay has not read yet, holds rows of every lane.

Without it rows are delivered before an earlier half of their lane that is far behind others, or that the relay reads a
moment later.
"""

from __future__ import annotations

from collections.abc import Iterable

from relay.tables import half_order
from relay.tables.half_order import HalfProgress
from tests.mutants.runner.mutant import Harm, Mutant


def is_settled(end: int, lanes: Iterable[int], now: HalfProgress) -> bool:
    """Count what is known only."""
    return all(now.unsettled.get(lane, end) >= end for lane in lanes)


MUTANT = Mutant(
    "R57",
    Harm.OUT_OF_ORDER,
    half_order.is_settled,
    is_settled,
    ("tests/unit/relay/test_table_admission.py::test_halves_are_marked_when_their_end_is_read_after_the_row",),
)
