"""R72: a row is settled by its local transaction and its id.

By the id alone, rows that were given the ids of a delivered batch, because the ids were restarted, are deleted as
delivered, and nobody has ever read them.
"""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql

from outbox._postgres.message_table import MessageTable
from tests.mutants.runner.mutant import Harm, Mutant


def _by_id(self: MessageTable, text: LiteralString) -> sql.Composed:
    """Return a statement that takes a row with the id for the row that is meant."""
    parts = {**self._names, "same": sql.SQL("m.id = r.id"), "missing": sql.SQL("0")}
    return sql.SQL(text).format(**parts)


MUTANT = Mutant(
    "R72",
    Harm.LOST,
    MessageTable.compose,
    _by_id,
    ("tests/integration/relay/test_table_identity.py::test_rows_that_got_the_ids_of_delivered_ones_are_not_deleted",),
)
