"""R58: a transaction of auto mode that fell back to rows sends no COMMIT marker for its halves.

Without it Kafka stores the halves late, the marker commits them, and each message is delivered twice: from the half
topic and from the message table.
"""

from __future__ import annotations

from outbox._auto.auto_seal import AutoSeal
from outbox.protocol.op import OpKind
from tests.mutants.runner.mutant import Harm, Mutant


def withdraw(self: AutoSeal) -> None:
    """Let the halves follow the local transaction."""
    if self._sent:
        self._entry = self._make_entry(OpKind.COMMIT, self.draft.positions, [0, len(self._sent) - 1])


MUTANT = Mutant(
    "R58",
    Harm.DOUBLED,
    AutoSeal.withdraw_halves,
    withdraw,
    ("tests/unit/outbox/test_auto_seal.py::test_transaction_that_gets_no_answer_becomes_rows",),
)
