"""R84: a half partition without a checkpoint goes on without what real topics show of it.

Without it `outbox channel resume` takes every half for undelivered, and what a relay delivered before its checkpoint
was lost becomes visible a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from outbox.operator.state.partition_repair import StoredHalf, first_checkpoint
from outbox.protocol.checkpoint import HalfCheckpoint
from tests.mutants.runner.mutant import Harm, Mutant


def _from_the_beginning(halves: Iterable[StoredHalf], delivered: Collection[str]) -> HalfCheckpoint:
    """Owe everything."""
    del halves, delivered
    return HalfCheckpoint(0, 0)


MUTANT = Mutant(
    "R84",
    Harm.DOUBLED,
    first_checkpoint,
    _from_the_beginning,
    (
        "tests/unit/outbox/test_partition_repair.py::test_each_half_of_a_delivered_transaction_is_settled_and_no_other",
        "tests/integration/relay/test_grown_channel.py::test_what_was_delivered_before_a_checkpoint_was_lost_is_not_delivered_again",
    ),
)
