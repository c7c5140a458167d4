"""R78: the rows that a publication has written are counted.

Without it a trigger that drops rows makes the transaction commit without some of its messages, silently.
"""

from __future__ import annotations

from outbox._table.insert_connection import InsertConnection
from outbox._table.row_writer import RowWriter
from tests.mutants.runner.mutant import Harm, Mutant


def _believe(self: RowWriter, connection: InsertConnection, messages: int, *counts: int) -> None:
    """Count nothing."""
    del self, connection, messages, counts


MUTANT = Mutant(
    "R78",
    Harm.LOST,
    RowWriter._require,
    _believe,
    ("tests/integration/library/test_table_copy.py::test_a_trigger_that_drops_or_adds_rows_ends_the_transaction",),
)
