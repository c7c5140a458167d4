"""R75: a source whose tables are altered while it serves them is halted.

Without it a cache that a tuner gives the sequence breaks the order of each key until the next take-over.
"""

from __future__ import annotations

from relay.tables.table_source import TableSource
from tests.mutants.runner.mutant import Harm, Mutant


def _verify(self: TableSource) -> None:
    """Trust the look at the take-over."""


MUTANT = Mutant(
    "R75",
    Harm.OUT_OF_ORDER,
    TableSource._verify,
    _verify,
    (
        "tests/integration/relay/test_altered_tables.py::test_a_table_that_is_altered_while_it_is_served_halts_within_the_minute",
    ),
)
