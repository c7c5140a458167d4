"""R10: of a group that commits nothing any more, no more is fenced than a crash can explain.

A copy of a database has the right incarnation. If the checker is pointed at it, or applications were moved to it and
the checker was not, every transaction that is asked about has no row there: all of them are rolled back, and the
messages of those that committed are lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from checker.rules.breaker import Breaker, Event, Evidence
from tests.mutants.runner.mutant import Harm, Mutant


def _always(self: Breaker, ids: Sequence[str], evidence: Evidence, now: float) -> bool:
    """The incarnation is right, so the database is."""
    del ids, evidence, now
    self._move(Event.EXPLAINED)
    return True


MUTANT = Mutant(
    "R10",
    Harm.LOST,
    Breaker.judge,
    _always,
    (
        "tests/unit/checker/test_breaker.py::test_it_opens_before_the_rollback_rows_are_placed",
        "tests/unit/checker/test_breaker.py::test_an_old_commit_shows_nothing_of_what_came_after_it",
        "tests/unit/checker/test_breaker.py::test_a_checker_that_starts_anew_counts_the_rollback_rows_that_are_there",
    ),
)
