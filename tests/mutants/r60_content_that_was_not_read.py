"""R60: a row whose content is too large to be read stays in its table.

Without it the row is delivered without its content, and deleted: consumers read a tombstone, and the content of the
message is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from relay.tables.foreign.foreign_rows import ForeignRow, deliverable
from tests.mutants.runner.mutant import Harm, Mutant


def _all(found: Sequence[ForeignRow], left_writers: Collection[int] = ()) -> tuple[list[ForeignRow], list[ForeignRow]]:
    """Let all rows go."""
    del left_writers
    return list(found), []


MUTANT = Mutant(
    "R60",
    Harm.LOST,
    deliverable,
    _all,
    ("tests/unit/relay/test_foreign_rows.py::test_row_too_large_stays_with_its_local_transaction",),
)
