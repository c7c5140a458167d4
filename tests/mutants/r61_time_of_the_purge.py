"""R61: the statement that purges evidence also notes its time.

Without it an audit takes a record whose evidence was purged for one that was made up, because evidence that is
absent proves something only for transactions that began after the newest purged one.
"""

from __future__ import annotations

from relay.tables.source_table import PURGE_ROWS, SourceTable
from tests.mutants.runner.mutant import Harm, Mutant


def _silently(self: SourceTable) -> bool:
    """Delete old evidence, and note nothing."""
    statement = (
        "DELETE FROM {delivered} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {delivered} WHERE delivered_at"
        " < now() - %s * interval '1 millisecond' ORDER BY delivered_at LIMIT %s))"
    )
    return self._connection.execute(self._table.compose(statement), (self._keep_ms, PURGE_ROWS)).rowcount == PURGE_ROWS


MUTANT = Mutant(
    "R61",
    Harm.PHANTOM,
    SourceTable._purge,
    _silently,
    (
        "tests/integration/relay/test_table_evidence.py::test_old_evidence_is_purged_and_its_time_is_kept",
        "tests/integration/spark/test_table_snapshot.py::test_a_purge_is_known_by_its_time",
    ),
)
