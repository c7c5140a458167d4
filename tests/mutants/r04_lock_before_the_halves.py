"""R4: while acknowledgements are late, the transaction's advisory lock says that it lives.

Without the lock, the checker takes a transaction whose halves are on a slow way for dead, and places its rollback row:
each attempt of the application fails with `TransactionFenced` for as long as Kafka is slow. Nothing is lost, and
nothing gets through.
"""

from __future__ import annotations

from outbox._publish.seal import Seal
from outbox._publish.waiting import Budget
from tests.mutants.runner.mutant import Harm, Mutant


def _acknowledged(self: Seal, budget: Budget) -> list[int]:
    """The offsets of the halves, without a word to the checker meanwhile."""
    return self._acks.offsets(budget)


MUTANT = Mutant(
    "R4",
    Harm.STUCK,
    Seal._acknowledged,
    _acknowledged,
    ("tests/integration/library/test_lock.py::test_it_is_taken_while_acknowledgements_are_late",),
)
