"""R50: only a checkpoint that was never reached before is progress.

Without it a half partition whose batch fails again and again counts as moving: each take-over begins at a lower
checkpoint, and the relay stays ready while nothing becomes visible.
"""

from __future__ import annotations

from relay.partitions.stalls import Stalls, _Progress
from tests.mutants.runner.mutant import Harm, Mutant


def _any_change(self: Stalls, partition: int, settled: int, now: float, *, has_work: bool) -> None:
    """Take each change for progress."""
    found = self._found.setdefault(partition, _Progress(settled, now, has_work))
    if settled != found.most or not has_work:
        found.since = now
    found.most, found.has_work = settled, has_work


MUTANT = Mutant(
    "R50",
    Harm.STUCK,
    Stalls.observe,
    _any_change,
    ("tests/unit/relay/test_stalls.py::test_batch_that_fails_again_and_again_is_no_progress",),
)
