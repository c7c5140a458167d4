"""R61: the statement that deletes delivered rows also inserts their evidence.

With a statement of its own for the evidence, a relay that dies between the two leaves rows that are gone without
evidence, and an audit takes their messages for made up.
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
_ALONE = source_table._MOVE.replace("{evidence}", "told AS (SELECT count(*) AS told FROM gone)")


def _apart(
    self: SourceTable,
    before: Progress,
    after: Progress,
    ready: Sequence[RowTransaction] = (),
    refused: Sequence[Refusal] = (),
) -> Progress:
    """Take the step and delete the rows; their evidence would follow."""
    self._move = self._table.compose(_ALONE)
    return _MOVE(self, before, after, ready, refused)


MUTANT = Mutant(
    "R61",
    Harm.PHANTOM,
    SourceTable.move,
    _apart,
    (
        "tests/integration/relay/test_table_evidence.py::test_a_relay_that_dies_after_it_deleted_rows_leaves_their_evidence",
    ),
)
