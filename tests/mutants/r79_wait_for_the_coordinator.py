"""R79: nobody wakes a producer that waits for the coordinator of the group.

The coordinator may move and leave the cluster while offsets are on their way. librdkafka then waits until some other
connection comes or goes, which may never be.
"""

from __future__ import annotations

import math

from relay.kafka.transactional_delivery import TransactionalDelivery
from tests.mutants.runner.mutant import Harm, Mutant


def _never(self: TransactionalDelivery) -> float:
    """It has a time limit of its own, has it not?"""
    del self
    return math.inf


MUTANT = Mutant(
    "R79",
    Harm.STUCK,
    TransactionalDelivery._wake_seconds,
    _never,
    ("tests/unit/relay/test_delivery.py::test_who_waits_for_the_groups_coordinator_is_woken",),
)
