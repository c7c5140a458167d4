"""R11: rows leave by settlement and age; below the purge watermark nothing is fenced.

The row of a transaction below the watermark may have been purged: a tombstone there would decide ROLLBACK for a
transaction that committed, and its message would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from checker.fence import _FENCE, Fence, _columns
from outbox.protocol.check import CheckRequest
from tests.mutants.runner.mutant import Harm, Mutant

_BLIND = _FENCE.replace("value::bigint > asked.last", "false")


def _insert_tombstones(self: Fence, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> None:
    """Insert tombstones, whatever was purged."""
    connection.execute(self._table.compose(_BLIND), (self._channel, *_columns(batch), []))


MUTANT = Mutant(
    "R11",
    Harm.LOST,
    Fence._insert_tombstones,
    _insert_tombstones,
    ("tests/integration/test_fence.py::test_below_the_purge_watermark_nothing_is_fenced",),
)
