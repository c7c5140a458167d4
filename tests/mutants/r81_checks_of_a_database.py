"""R81: an unforeseen error leaves the other batches of a database of the checker.

Without it the first one ends the thread, and no check of this database is answered any more: undecided transactions
stay undecided.
"""

from __future__ import annotations

from checker.database import Database
from tests.mutants.runner.mutant import Harm, Mutant


def _run(self: Database) -> None:
    """End at the first error."""
    try:
        while not self._stopping.is_set():
            self._turn()
    except Exception as error:  # noqa: BLE001 - it ends the thread
        self.failing = repr(error)


MUTANT = Mutant(
    "R81",
    Harm.STUCK,
    Database._run,
    _run,
    ("tests/unit/checker/test_database_thread.py::test_a_batch_that_fails_unforeseen_leaves_the_next_one",),
)
