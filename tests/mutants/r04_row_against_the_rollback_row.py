"""R4: the row is a plain INSERT in the application's own transaction, whose COMMIT falls with it.

The checker's rollback row takes the same key. An application that gets past it, by a SAVEPOINT around the INSERT or by
ON CONFLICT DO NOTHING, commits its business rows while the rollback row stands: the checker has decided ROLLBACK, and
the message is lost.
"""

from __future__ import annotations

from psycopg import sql

from outbox._publish.seal import Seal
from outbox.errors import TransactionFenced
from outbox.protocol.op import OpEntry
from tests.mutants.runner.mutant import Harm, Mutant

_insert = Seal._insert


def _insert_or_go_on(self: Seal, entry: OpEntry) -> str | None:
    """Insert the row, if nobody else was first."""
    self._connection.execute(sql.SQL("SAVEPOINT before_the_row"))
    try:
        return _insert(self, entry)
    except TransactionFenced:
        self._connection.execute(sql.SQL("ROLLBACK TO SAVEPOINT before_the_row"))
        return None


MUTANT = Mutant(
    "R4",
    Harm.LOST,
    Seal._insert,
    _insert_or_go_on,
    ("tests/integration/library/test_seal.py::test_the_checker_was_first",),
)
