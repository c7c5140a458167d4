"""R8: the checker reads after it has tried the lock and placed the tombstone, in a statement of its own.

An application may commit while the checker is at it. What was read before does not show its row, and the tombstone
meets it: the verdict rests on the absence of a row that is there. It is PURGED then, which only an operator ends: the
message is stuck, and its ordering key behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from checker.fence import Answers, Fence, _verdict
from checker.verdicts import Verdict
from outbox.protocol.check import CheckRequest
from tests.mutants.runner.mutant import Harm, Mutant


def _check(self: Fence, connection: psycopg.Connection[Any], batch: Sequence[CheckRequest]) -> Answers:
    """Read first, as it would be right inside one snapshot."""
    foreign = self._foreign(connection, batch)
    asked = [request for request in batch if request.transaction_id not in foreign]
    rows = self._read(connection, [request.transaction_id for request in asked])
    locked = self._fence_unlocked(connection, asked)
    answers: Answers = dict.fromkeys(foreign, (Verdict.MISMATCH, None))
    for request in asked:
        id_ = request.transaction_id
        answers[id_] = (_verdict(rows.get(id_), locked=id_ in locked), rows.get(id_))
    return answers


MUTANT = Mutant(
    "R8",
    Harm.STUCK,
    Fence._check,
    _check,
    ("tests/integration/test_fence.py::test_an_application_that_commits_while_the_checker_is_at_it_is_seen",),
)
