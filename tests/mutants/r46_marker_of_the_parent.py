"""R46: a forked child neither marks nor goes on with a transaction that was begun before the fork.

A child that collects its copy of a session would send ROLLBACK for what the parent is about to commit: the relay
settles the halves as rolled back, and the committed messages are lost.
"""

from __future__ import annotations

from outbox._publish.seal import Seal
from tests.mutants.runner.mutant import Harm, Mutant


def rolled_back(self: Seal, reason: str) -> None:
    """Send the marker from whichever process says so."""
    self._end(self._outcome_without_commit)
    self.draft.end.rolled_back(reason)
    if self._sent:
        self._acks.when_all(self._send_rollback)


MUTANT = Mutant(
    "R46",
    Harm.LOST,
    Seal.rolled_back,
    rolled_back,
    ("tests/process/test_forks.py::test_rollback_marker_is_sent_by_the_process_that_began",),
)
