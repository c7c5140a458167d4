"""R11: rows leave by settlement and age, never by age alone.

The row of a transaction that is not settled is the only thing that says that it committed. If it is deleted because it
is old, the next check takes its absence for a rollback, and its message is lost.
"""

from __future__ import annotations

from checker.rules.settlement import ChannelProgress, settled_below
from tests.mutants.runner.mutant import Harm, Mutant


def _all_that_was_read(progress: ChannelProgress) -> dict[int, int]:
    """Whatever lies in the half topic may go once it is old."""
    return {number: partition.end + 2**40 for number, partition in progress.partitions.items()}


MUTANT = Mutant(
    "R11",
    Harm.LOST,
    settled_below,
    _all_that_was_read,
    (
        "tests/unit/checker/test_settled.py::test_a_partition_whose_discard_topic_is_held_back_keeps_its_rows",
        "tests/unit/checker/test_settled.py::test_without_a_checkpoint_nothing_is_known_and_nothing_may_go",
        "tests/integration/checker/test_purge.py::test_without_a_checkpoint_that_proves_itself_nothing_goes",
    ),
)
