"""R80: a replica on a broker that this process has lost is not in sync, whatever Kafka's description says.

The controller counts a dead broker for as long as its session lasts. What is written meanwhile to a topic that needs
it has no end until it is back, and all topics of the half partition or the table source wait.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from outbox._rules.topic_description import Replicas
from tests.mutants.runner.mutant import Harm, Mutant


def _are_few(self: Replicas, lost: AbstractSet[int] = frozenset()) -> bool:
    """The controller knows."""
    del lost
    return len(self.in_sync) < self.needed


MUTANT = Mutant(
    "R80",
    Harm.STUCK,
    Replicas.are_few,
    _are_few,
    ("tests/unit/relay/test_preflight.py::test_replicas_on_lost_brokers_are_not_in_sync",),
)
