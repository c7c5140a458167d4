"""R11: below the purge watermark nothing is fenced, not even by a fence that meets a purge.

The fence's INSERT waits for the purge's DELETE of the same row, and then finds its key free. Without a second look at
the watermark the rollback row stays: to its application a committed transaction is rolled back, and is done once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from checker.fencing.rollback_rows import _look_again
from outbox._postgres.callback_table import CallbackTable
from tests.mutants.runner.mutant import Harm, Mutant


def _trust_the_statement(connection: psycopg.Connection[Any], table: CallbackTable, placed: Sequence[str]) -> None:
    """Look at the watermark in the statement that inserts only."""
    del connection, table, placed


MUTANT = Mutant(
    "R11",
    Harm.DOUBLED,
    _look_again,
    _trust_the_statement,
    ("tests/integration/checker/test_purge.py::test_a_fence_that_meets_a_purge_is_no_rollback_row",),
)
