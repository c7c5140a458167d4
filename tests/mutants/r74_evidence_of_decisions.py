"""R74: an operator who drops a discarded transaction leaves evidence that it committed.

Without it `outcome()` calls the transaction rolled back, and the application runs it again: its change is made twice.
"""

from __future__ import annotations

from outbox.operator.reading.discarded_rows import DiscardedTable
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.protocol.identifiers import xid_of
from tests.mutants.runner.mutant import Harm, Mutant


def _drop(self: DiscardedTable, transaction: DiscardedTransaction) -> None:
    """Delete the rows, and nothing else."""
    delete = self._table.compose("DELETE FROM {discarded} WHERE xid = CAST(%s AS xid8)")
    self._connection.execute(delete, (str(xid_of(transaction.transaction)),))


MUTANT = Mutant(
    "R74",
    Harm.DOUBLED,
    DiscardedTable.drop,
    _drop,
    ("tests/integration/library/test_table_mode.py::test_a_row_proves_the_commit_wherever_it_is",),
)
