"""R17: after an error neither the producer is used again, nor the ledger that has handed the batch out.

What the ledger handed out it holds for settled. A worker that goes on after a Kafka transaction that failed commits a
checkpoint beyond the messages of that one: they are lost.
"""

from __future__ import annotations

from relay.kafka.producer import DeliveryError
from relay.serving.worker import PartitionWorker
from tests.mutants.runner.mutant import Harm, Mutant


def run(self: PartitionWorker) -> None:
    """Read, decide, deliver, and try again."""
    self._restore_discards()
    self._restore_halves()
    while not self.arrivals.is_stopping:
        self._wait()
        try:
            self._read()
            self._settle()
        except DeliveryError as error:
            self.failure = error
            self._commit([])


MUTANT = Mutant(
    "R17",
    Harm.LOST,
    PartitionWorker.run,
    run,
    ("tests/unit/relay/test_partition_worker.py::test_it_ends_at_the_first_error",),
)
