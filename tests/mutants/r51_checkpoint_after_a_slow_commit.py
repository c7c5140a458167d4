"""R51: after a commit that may have been sent twice, a relay goes on only once Kafka returns its checkpoint.

Without it, the next transaction, if it is aborted, takes a checkpoint along that hangs although it was committed. Its
messages are delivered again.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import TopicPartition

from relay.kafka.transactional_delivery import TransactionalDelivery
from tests.mutants.runner.mutant import Harm, Mutant


def _go_on(self: TransactionalDelivery, offsets: Sequence[TopicPartition]) -> None:
    """Take the checkpoint for stable."""
    del self, offsets


MUTANT = Mutant(
    "R51",
    Harm.DOUBLED,
    TransactionalDelivery._require_stable,
    _go_on,
    ("tests/unit/relay/test_delivery.py::test_slow_commit_whose_checkpoint_hangs_ends_the_worker",),
)
