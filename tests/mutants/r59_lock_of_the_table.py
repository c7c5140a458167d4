"""R59: the owner of a source holds a lock of the foreign table, too.

Without it two sources of different names and prefixes deliver the same rows, and consumers read each message twice.
"""

from __future__ import annotations

from relay.tables.foreign.foreign_table import ForeignTable
from relay.tables.owned_table import OwnedTable
from tests.mutants.runner.mutant import Harm, Mutant


def _source_alone(self: ForeignTable) -> bool:
    """Take the lock of the source alone."""
    return OwnedTable.try_own(self)


MUTANT = Mutant(
    "R59",
    Harm.DOUBLED,
    ForeignTable.try_own,
    _source_alone,
    ("tests/integration/relay/test_foreign_table.py::test_two_sources_never_deliver_one_table",),
)
