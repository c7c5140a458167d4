"""R71: the statement that settles a batch counts what it has done, and fails unless that is all of it.

Without it a trigger that suppresses a DELETE brings the same messages again and again: the batch is settled, its rows
are there, and the next batch has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox._rules.source_progress import Progress
from relay.tables import source_table
from relay.tables.owned_table import Refusal
from relay.tables.rows import RowTransaction
from relay.tables.source_table import SourceTable
from tests.mutants.runner.mutant import Harm, Mutant

_MOVE = SourceTable.move
_UNCOUNTED = source_table._MOVE.replace("{counted}", "SELECT batch FROM moved")


def _uncounted(
    self: SourceTable,
    before: Progress,
    after: Progress,
    ready: Sequence[RowTransaction] = (),
    refused: Sequence[Refusal] = (),
) -> Progress:
    """Take the step, whatever became of the rows."""
    self._move = self._table.compose(_UNCOUNTED)
    return _MOVE(self, before, after, ready, refused)


_TESTS = "tests/integration/relay/test_table_counts.py"

MUTANT = Mutant(
    "R71",
    Harm.DOUBLED,
    SourceTable.move,
    _uncounted,
    (f"{_TESTS}::test_a_trigger_that_suppresses_what_is_settled_halts_the_source",),
)
