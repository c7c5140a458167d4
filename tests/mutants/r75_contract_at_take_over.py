"""R75: a source whose tables break their contract is halted at its take-over.

Without it a trigger that keeps rows lets the relay deliver them again and again, for as long as it runs.
"""

from __future__ import annotations

from relay.tables.owned_table import OwnedTable
from tests.mutants.runner.mutant import Harm, Mutant


def _verify(self: OwnedTable) -> None:
    """Look at nothing."""


MUTANT = Mutant(
    "R75",
    Harm.DOUBLED,
    OwnedTable.verify,
    _verify,
    (
        "tests/integration/relay/test_altered_tables.py::test_a_table_with_a_trigger_is_not_taken_over_until_it_is_dropped",
    ),
)
