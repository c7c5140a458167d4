"""R31: a table source ends what its aborted transactions left open on a real topic.

A broker without a leader for the partition has skipped the end of an aborted batch. Without this, the next commit ends
it as committed, beside what was delivered in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from relay.recovery.authors import Found, Own
from relay.tables.row_author import RowAuthor
from tests.mutants.runner.mutant import Harm, Mutant


def _last_own(self: RowAuthor, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
    """Take all records for those of others."""
    del self, found, in_hand
    return None


MUTANT = Mutant(
    "R31",
    Harm.DOUBLED,
    RowAuthor.last_own,
    _last_own,
    ("tests/unit/relay/test_row_author.py::test_rows_of_a_batch_that_hangs_are_owed",),
)
