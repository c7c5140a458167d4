"""R57: the end of a half partition is kept as it was first read after a transaction's rows.

Without it the end moves on with each half that others publish, there is always a half that is not settled, and the rows
wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.tables.half_order import HalfProgress, _Waiting, is_settled
from tests.mutants.runner.mutant import Harm, Mutant


def has_passed(self: _Waiting, progress: Mapping[int, HalfProgress]) -> bool:
    """Compare with the end as it is now."""
    now = [progress.get(number) for number in self.marks]
    return all(one is not None and is_settled(one.end, self.lanes, one) for one in now)


MUTANT = Mutant(
    "R57",
    Harm.STUCK,
    _Waiting.has_passed,
    has_passed,
    ("tests/unit/relay/test_table_admission.py::test_a_row_of_mode_auto_waits_for_earlier_halves_of_its_lane",),
)
