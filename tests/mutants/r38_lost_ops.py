"""R38: an op partition whose next op was removed goes on from its beginning.

Without it the relay reads from an offset that is gone, and the half partition is taken over again for ever.
"""

from __future__ import annotations

from confluent_kafka import Consumer

from outbox.protocol.checkpoint import OpCheckpoint
from relay.recovery.restore import lost_ops
from tests.mutants.runner.mutant import Harm, Mutant


def _none(consumer: Consumer, topic: str, number: int, checkpoint: OpCheckpoint) -> int:
    """See nothing of what is gone."""
    del consumer, topic, number, checkpoint
    return 0


MUTANT = Mutant(
    "R38",
    Harm.STUCK,
    lost_ops,
    _none,
    ("tests/integration/relay/test_halts.py::test_lost_ops_are_decided_by_checks",),
)
