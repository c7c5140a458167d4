"""R27: committed transactions that are not delivered are reported, those in the discard topic among them.

To the checkpoint they are settled. If the audit believes that alone, a message that was promised and lies there for
ever is missed by nobody: it is as good as lost.
"""

from __future__ import annotations

from checker.rules.settlement import ChannelProgress, CommittedRow, Delay, _why_unsettled, why_undelivered
from tests.mutants.runner.mutant import Harm, Mutant


def _by_the_checkpoint(row: CommittedRow, progress: ChannelProgress) -> Delay | None:
    """What lies below the checkpoint is delivered."""
    if row.topic_id != progress.topic_id:
        return Delay.DELETED_TOPIC
    return _why_unsettled(row, progress.partitions.get(row.partition)) if row.last_offset >= 0 else None


MUTANT = Mutant(
    "R27",
    Harm.LOST,
    why_undelivered,
    _by_the_checkpoint,
    (
        "tests/unit/checker/test_settled.py::test_why_a_committed_transaction_is_not_delivered",
        "tests/integration/checker/test_settlement.py::test_each_reason_is_told",
    ),
)
