"""R73: an equal number proves a batch only together with its nonce.

Without it a copy of a database, served under the same name, takes the batch of another copy for its own, and deletes
rows as delivered that nobody delivered.
"""

from __future__ import annotations

from outbox._rules.source_progress import Committed, Progress, is_of_a_copy
from tests.mutants.runner.mutant import Harm, Mutant


def _never(progress: Progress, committed: Committed) -> bool:
    """Take each batch with a number of this database for its own."""
    del progress, committed
    return False


MUTANT = Mutant(
    "R73",
    Harm.LOST,
    is_of_a_copy,
    _never,
    (
        "tests/unit/relay/test_table_progress.py::test_copies_delete_nothing_unread_and_a_conflict_halts_both",
        "tests/integration/relay/test_table_copies.py::test_two_copies_halt_and_delete_nothing_unread",
    ),
)
