"""R76: an owner runs its statements in the session that holds its lock.

Behind a pooler in transaction mode the lock stays in a session that others use, and two relays take the table for
theirs.
"""

from __future__ import annotations

from relay.tables.owned_table import OwnedTable
from tests.mutants.runner.mutant import Harm, Mutant


def _require_session(self: OwnedTable) -> None:
    """Take any session for its own."""


MUTANT = Mutant(
    "R76",
    Harm.STUCK,
    OwnedTable.require_session,
    _require_session,
    ("tests/integration/relay/test_altered_tables.py::test_a_lock_in_another_session_is_told",),
)
