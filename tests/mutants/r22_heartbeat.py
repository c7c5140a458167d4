"""R22: an idle partition commits hourly.

Kafka forgets the offsets of a group that commits nothing for a week, and a transactional id likewise. The relay's next
restart finds no checkpoint, and stops for somebody to look: everything is stuck until then.
"""

from __future__ import annotations

import time

from relay.serving.commits import PROGRESS_SECONDS, Commits
from tests.mutants.runner.mutant import Harm, Mutant


def is_due(self: Commits) -> bool:
    """Whether there is progress that was not committed for a while."""
    return self._ledger.checkpoints() != self._committed and time.monotonic() - self._committed_at >= PROGRESS_SECONDS


MUTANT = Mutant(
    "R22",
    Harm.STUCK,
    Commits.is_due,
    is_due,
    ("tests/unit/relay/test_partition_worker.py::test_an_idle_partition_commits_hourly",),
)
