"""R55: Kafka proves whether the batch that an owner of a table source left behind was delivered.

Without it the next owner reads the rows of a delivered batch again, because they are not deleted yet, and every
message of that batch is delivered twice.
"""

from __future__ import annotations

from outbox._rules.source_progress import Committed, Progress
from relay.tables.table_progress import was_delivered
from tests.mutants.runner.mutant import Harm, Mutant


def _never(source: str, progress: Progress, committed: Committed | None) -> bool:
    """Take a batch whose rows are still there for one that was not delivered."""
    del source, committed
    return progress.batch == progress.delivered


MUTANT = Mutant(
    "R55",
    Harm.DOUBLED,
    was_delivered,
    _never,
    (
        "tests/unit/relay/test_table_progress.py::test_every_row_is_delivered_once_wherever_owners_die",
        "tests/integration/relay/test_table_source.py::test_a_relay_killed_after_its_commit_delivers_nothing_twice",
    ),
)
