"""R10: a half names the incarnation of its database, and another one never decides.

A wrong connection string, a staging database or a fresh one has no rows: everything that is asked there would be
fenced, and messages whose transactions committed would be rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable

from checker.fencing.row_lookup import foreign
from outbox.protocol.check import CheckRequest
from tests.mutants.runner.mutant import Harm, Mutant


def _none_foreign(batch: Iterable[CheckRequest], incarnation: str | None) -> set[str]:
    """Any database decides."""
    del batch, incarnation
    return set()


MUTANT = Mutant(
    "R10",
    Harm.LOST,
    foreign,
    _none_foreign,
    ("tests/integration/checker/test_fence.py::test_another_incarnation_never_decides",),
)
