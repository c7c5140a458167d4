"""R46: a forked child neither marks nor goes on with a transaction that was begun before the fork.

A child that collects its copy of a session would send ROLLBACK for what the parent is about to commit: the relay
settles the halves as rolled back, and the committed messages are lost.
"""

from __future__ import annotations

from functools import partial

from outbox._publish.seal import Seal
from tests.mutants.runner.mutant import Harm, Mutant


def withdraw(self: Seal) -> None:
    """Send the marker from whichever process says so."""
    sent, self._sent = self._sent, []
    if sent:
        self._acks.when_all(partial(self._send_rollback, sent))


MUTANT = Mutant(
    "R46",
    Harm.LOST,
    Seal._withdraw,
    withdraw,
    ("tests/process/test_forks.py::test_rollback_marker_is_sent_by_the_process_that_began",),
)
