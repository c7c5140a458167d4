"""R14: ops that contradict each other are looked up, never first-wins.

As RocketMQ has it, the first op to arrive decides. A producer's COMMIT may be wrong, or of somebody else's making; if
it is obeyed because it came first, the message of a transaction that was rolled back is delivered: a phantom.
"""

from __future__ import annotations

from outbox.protocol.op import OpEntry, OpSource
from relay.state.message_transaction import Event, Transaction
from tests.mutants.runner.mutant import Harm, Mutant

_event = Transaction.event


def event(self: Transaction, entry: OpEntry, source: OpSource) -> Event | None:
    """What an op entry means; one that contradicts the first means nothing."""
    found = _event(self, entry, source)
    return None if found is Event.CONTRADICTION else found


MUTANT = Mutant(
    "R14",
    Harm.PHANTOM,
    Transaction.event,
    event,
    (
        "tests/unit/relay/test_ledger.py::test_a_contradiction_is_looked_up_and_the_checker_wins",
        "tests/unit/relay/test_ledger.py::test_a_third_op_of_a_producer_does_not_end_a_dispute",
        "tests/unit/relay/test_ledger.py::test_commits_that_list_different_halves_contradict_each_other",
    ),
)
