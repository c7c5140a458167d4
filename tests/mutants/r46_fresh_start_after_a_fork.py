"""R46: a forked child starts afresh.

With the clients of its parent, whose threads do not exist in the child, `ping()`, `publish()` and the end of the
process wait for ever.
"""

from __future__ import annotations

from outbox._publish.sender import Sender
from tests.mutants.runner.mutant import Harm, Mutant


def start_afresh(self: Sender) -> None:
    """Keep what the parent had."""


MUTANT = Mutant(
    "R46",
    Harm.STUCK,
    Sender.start_afresh,
    start_afresh,
    ("tests/process/test_forks.py::test_child_has_no_producer_of_its_parent_and_ends",),
)
