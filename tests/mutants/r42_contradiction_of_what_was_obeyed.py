"""R42: a decision that contradicts one that was obeyed is an event, after the transaction was settled, too.

Without it, a forged or late ROLLBACK before the COMMIT loses a committed message, and no counter, log or alarm shows
it.
"""

from __future__ import annotations

from outbox.protocol.op import OpEntry, OpSource
from relay.state.obeyed import Contradiction, Obeyed
from tests.mutants.runner.mutant import Harm, Mutant


def _none(self: Obeyed, source: OpSource, entry: OpEntry) -> Contradiction | None:
    """Take every late op for a repetition."""
    del self, source, entry
    return None


MUTANT = Mutant(
    "R42",
    Harm.LOST,
    Obeyed.contradiction,
    _none,
    ("tests/unit/relay/test_obeyed.py::test_ledger_op_against_a_settled_decision_is_an_event",),
)
