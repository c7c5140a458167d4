"""R11: rows leave by settlement and age; below the purge watermark nothing is fenced.

The part of the rule that is built. The row of a transaction below the watermark may have been purged: a tombstone there
would decide ROLLBACK for a transaction that committed, and its message would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from checker.fence import _FENCE, _TRY_LOCKS, Fence, _columns, _durably
from outbox.protocol.check import CheckRequest
from outbox.protocol.identifiers import lock_number
from tests.mutants.runner.mutant import Harm, Mutant

_BLIND = _FENCE.replace("value::bigint > asked.last", "false")


def _fence_unlocked(self: Fence, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> set[str]:
    """Insert tombstones where the lock was free, whatever was purged."""
    locked: set[str] = set()

    def fence() -> None:
        ids = [request.transaction_id for request in batch]
        numbers = [lock_number(id_) for id_ in ids]
        locked.update(str(id_) for (id_,) in connection.execute(_TRY_LOCKS, (ids, numbers)))
        free = [request for request in batch if request.transaction_id in locked]
        connection.execute(self._table.compose(_BLIND), (self._channel, *_columns(free)))

    _durably(connection, fence)
    return locked


MUTANT = Mutant(
    "R11",
    Harm.LOST,
    Fence._fence_unlocked,
    _fence_unlocked,
    ("tests/integration/test_fence.py::test_below_the_purge_watermark_nothing_is_fenced",),
)
