"""R67: a session whose role may not deliver is not taken for the owner of a table source.

Without it, `outbox pending` and the doctor call a source served whose lock a stranger holds, and no log line names the
session that keeps all relays from it.
"""

from __future__ import annotations

from outbox._postgres.source_statements import OWNER
from outbox.operator.reading.table_view import Owner, TableView
from tests.mutants.runner.mutant import Harm, Mutant


def _owner(self: TableView) -> Owner | None:
    """Take whoever holds the lock for the owner."""
    row = self._connection.execute(OWNER, {"source": self._source}).fetchone()
    return None if row is None else Owner(*row)._replace(may_deliver=True)


MUTANT = Mutant(
    "R67",
    Harm.STUCK,
    TableView.owner,
    _owner,
    ("tests/integration/operator/test_owner_lock.py::test_a_role_without_rights_is_no_owner",),
)
