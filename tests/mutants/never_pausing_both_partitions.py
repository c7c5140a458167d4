"""Never pausing both partitions: ops for halves ahead may wait only while halves can be read.

The half partition stands still at its window, below an undecided half. The op that decides it lies behind more early
ops than there is room for. If they wait for halves, and the halves for that op, the partition is stuck for ever.
"""

from __future__ import annotations

from relay.serving.worker import PartitionWorker
from tests.mutants.runner.mutant import Harm, Mutant


def _can_read_halves(self: PartitionWorker) -> bool:
    """More will come."""
    del self
    return True


MUTANT = Mutant(
    "never pausing both partitions",
    Harm.STUCK,
    PartitionWorker._can_read_halves,
    _can_read_halves,
    ("tests/unit/relay/test_partition_worker.py::test_ops_are_read_on_while_the_half_partition_stands_still",),
)
