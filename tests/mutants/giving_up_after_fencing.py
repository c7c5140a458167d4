"""Giving up after _FENCED: a relay that was fenced serves the partition again only in a new generation of its group.

Somebody else has taken it over. A relay that takes it back after a moment fences the new owner, which does the same:
each aborts what the other one writes, and the partition is stuck for as long as both run.
"""

from __future__ import annotations

import time

from relay.serving.served import ServedPartitions
from tests.mutants.runner.mutant import Harm, Mutant


def _give_way(self: ServedPartitions, number: int) -> None:
    """Try again soon."""
    self.ownership.try_later(number, time.monotonic())


MUTANT = Mutant(
    "giving up after _FENCED",
    Harm.STUCK,
    ServedPartitions._give_way,
    _give_way,
    ("tests/integration/relay/test_fenced_relay.py::test_a_relay_that_was_fenced_leaves_the_new_owner_alone",),
)
