"""R75: the sequence of a message table has no cache.

With one, each session gives out ids of its own range, and rows of one key are not read in the order of the changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from outbox._postgres import table_contract
from outbox._postgres.table_contract import Breach, Facts, Table
from tests.mutants.runner.mutant import Harm, Mutant

_BREACHES = table_contract._breaches


def _without_sequences(
    connection: psycopg.Connection[Any], table: Table, place: tuple[str, str], facts: Facts
) -> Iterator[Breach]:
    """Take every sequence for fine."""
    yield from _BREACHES(connection, table, place, facts._replace(has_sequence=True))


MUTANT = Mutant(
    "R75",
    Harm.OUT_OF_ORDER,
    table_contract._breaches,
    _without_sequences,
    ("tests/integration/library/test_table_contract.py::test_the_commands_refuse_tables_that_break_it",),
)
