"""Giving up after _FENCED: a relay that was fenced serves the partition again only in a new generation of its group.

Somebody else has taken it over. A relay that takes it back after a moment fences the new owner, which does the same:
each aborts what the other one writes, and the partition is stuck for as long as both run.
"""

from __future__ import annotations

import time

from outbox.errors import OutboxError
from relay.delivery import DeliveryError
from relay.service import RETRY_SECONDS, RelayService
from tests.mutants.runner.mutant import Harm, Mutant


def _give_way(self: RelayService, number: int, failure: DeliveryError | OutboxError) -> None:
    """Try again soon."""
    del failure
    self._unserved[number] = time.monotonic() + RETRY_SECONDS


MUTANT = Mutant(
    "giving up after _FENCED",
    Harm.STUCK,
    RelayService._give_way,
    _give_way,
    ("tests/integration/test_fenced_relay.py::test_a_relay_that_was_fenced_leaves_the_new_owner_alone",),
)
