"""R61: the statement that deletes delivered rows also inserts their evidence.

With two statements a relay that dies between them leaves rows that are gone without evidence, and an audit takes
their messages for made up.
"""

from __future__ import annotations

from outbox._rules.source_progress import Progress
from relay.tables.owned_table import Step
from relay.tables.source_table import SourceTable
from tests.mutants.runner.mutant import Harm, Mutant

_MOVE = SourceTable.move


def _apart(self: SourceTable, before: Progress, step: Step) -> Progress:
    """Delete the rows, take the step, and insert the evidence last."""
    gone = self._connection.execute(
        self._table.compose(
            "DELETE FROM {message} WHERE id = ANY (%s) RETURNING xid::text, created_at, id, id, id + 1, partition,"
            " producer_group, topic"
        ),
        (list(step.gone),),
    ).fetchall()
    after = _MOVE(self, before, step)
    for row in gone:
        self._connection.execute(
            self._table.compose(
                "INSERT INTO {delivered} (xid, created_at, first_id, ids, partition, producer_group, topic, batch)"
                " VALUES (%s::text::xid8, %s, %s, int8multirange(int8range(%s, %s)), %s, %s, %s, %s)"
            ),
            (*row, step.delivered),
        )
    return after


MUTANT = Mutant(
    "R61",
    Harm.PHANTOM,
    SourceTable.move,
    _apart,
    (
        "tests/integration/relay/test_table_evidence.py::test_a_relay_that_dies_after_it_deleted_rows_leaves_their_evidence",
    ),
)
