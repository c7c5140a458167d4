"""R11: below the purge watermark nothing is fenced, not even by a fence that meets a purge.

The fence's INSERT waits for the purge's DELETE of the same row, and then finds its key free. Without a second look at
the watermark the tombstone stays: to its application a committed transaction is rolled back, and is done once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from checker.fence import _FENCE, Fence, _columns
from outbox.protocol.check import CheckRequest
from tests.mutants.runner.mutant import Harm, Mutant


def _insert_tombstones(self: Fence, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> None:
    """Look at the watermark in the same statement only."""
    connection.execute(self._table.compose(_FENCE), (self._channel, *_columns(batch), []))


MUTANT = Mutant(
    "R11",
    Harm.DOUBLED,
    Fence._insert_tombstones,
    _insert_tombstones,
    ("tests/integration/test_purge.py::test_a_fence_that_meets_a_purge_is_no_tombstone",),
)
