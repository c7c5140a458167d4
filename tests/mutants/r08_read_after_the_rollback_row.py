"""R8: the checker reads after it has tried the lock and placed the rollback row, in a statement of its own.

An application may commit while the checker is at it. What was read before does not show its row, and the rollback row
meets it: the verdict rests on the absence of a row that is there. It is PURGED then, which only an operator ends: the
message is stuck, and its ordering key behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from checker.fencing.row_lookup import read_rows
from outbox._postgres.callback_table import CallbackTable
from outbox._rules.callback_row import Row
from tests.mutants.runner.mutant import Harm, Mutant


def _read_nothing(connection: psycopg.Connection[Any], table: CallbackTable, ids: Sequence[str]) -> dict[str, Row]:
    """The look before the locks says it all, as it would be right inside one snapshot."""
    del connection, table, ids
    return {}


MUTANT = Mutant(
    "R8",
    Harm.STUCK,
    read_rows,
    _read_nothing,
    ("tests/integration/checker/test_fence.py::test_an_application_that_commits_while_the_checker_is_at_it_is_seen",),
)
