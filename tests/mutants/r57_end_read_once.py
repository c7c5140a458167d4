"""R57: the end of a half partition is kept as it was first read after a transaction's rows.

Without it the end moves on with each half that others publish, there is always a half that is not settled, and the rows
wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.tables import half_order
from relay.tables.half_order import HalfProgress, Marks
from tests.mutants.runner.mutant import Harm, Mutant


def _have_passed(marks: Marks, progress: Mapping[int, HalfProgress]) -> bool:
    """Compare with the end as it is now."""
    now = [progress.get(number) for number in marks]
    return all(one is not None and one.settled is not None and one.settled >= one.end for one in now)


MUTANT = Mutant(
    "R57",
    Harm.STUCK,
    half_order._have_passed,
    _have_passed,
    ("tests/unit/relay/test_table_admission.py::test_a_row_of_mode_auto_waits_for_halves_of_its_partition",),
)
