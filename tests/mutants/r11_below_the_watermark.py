"""R11: rows leave by settlement and age; below the purge watermark nothing is fenced.

The row of a transaction below the watermark may have been purged: a rollback row there would decide ROLLBACK for a
transaction that committed, and its message would be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from checker.fencing.rollback_rows import _INSERT, _columns, _insert
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.check import CheckRequest
from tests.mutants.runner.mutant import Harm, Mutant

_BLIND = _INSERT.replace("value::bigint > asked.last", "false")


def _insert_blindly(
    connection: psycopg.Connection[Any],
    table: CallbackTable,
    channel: str,
    requests: Sequence[CheckRequest],
    *,
    in_discard_topic: bool,
) -> bool:
    """Insert rollback rows where the lock was free, whatever was purged."""
    del in_discard_topic
    connection.execute(table.compose(_BLIND), (channel, *_columns(requests), []))
    return True


MUTANT = Mutant(
    "R11",
    Harm.LOST,
    _insert,
    _insert_blindly,
    ("tests/integration/checker/test_fence.py::test_below_the_purge_watermark_nothing_is_fenced",),
)
