"""R57: no further rows are read of lanes of which too many rows wait for earlier halves.

Without it the rows of one lane take all the room for rows that wait, and those of other lanes are not read any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.tables.admission import Admission
from tests.mutants.runner.mutant import Harm, Mutant


def held_lanes(self: Admission) -> Sequence[int]:
    """Hold none."""
    del self
    return ()


MUTANT = Mutant(
    "R57",
    Harm.STUCK,
    Admission.held_lanes,
    held_lanes,
    ("tests/unit/relay/test_table_admission.py::test_a_lane_with_too_many_rows_is_held_and_no_other",),
)
