"""R9: a COMMITTED verdict leaves only after a synchronous write of the checker's own.

A row is visible before it is durable: its writer's wait for the disk or for the standby may have been cancelled, or the
server crashed in it. If the server is lost then, so is the row, and what was delivered says what the database does not.
"""

from __future__ import annotations

from typing import Any

import psycopg

from checker.fencing.fence import Fence
from tests.mutants.runner.mutant import Harm, Mutant


def _write(self: Fence, connection: psycopg.Connection[Any]) -> None:
    """Trust what is visible."""
    del self, connection


MUTANT = Mutant(
    "R9",
    Harm.PHANTOM,
    Fence._write,
    _write,
    ("tests/integration/checker/test_fence_durability.py::test_a_row_that_is_not_replicated_is_not_told",),
)
