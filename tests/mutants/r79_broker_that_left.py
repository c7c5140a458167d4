"""R79: a producer is used on although a broker has left the cluster that it may take for the group's coordinator.

Its `send_offsets_to_transaction` then waits without any time limit, and the half partition stands still.
"""

from __future__ import annotations

from relay.kafka.producer import BatchProducer
from tests.mutants.runner.mutant import Harm, Mutant


def _blind(self: BatchProducer) -> bool:
    """It finds another coordinator by itself, does it not?"""
    del self
    return False


MUTANT = Mutant(
    "R79",
    Harm.STUCK,
    BatchProducer.saw_broker_leave,
    _blind,
    ("tests/unit/relay/test_delivery.py::test_when_a_broker_left_the_next_batch_has_a_fresh_producer",),
)
