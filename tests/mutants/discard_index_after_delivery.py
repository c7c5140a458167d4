"""Discard index: what was delivered from the discard topic has left it, whatever a fetch would still return.

Compaction is late: the record of a delivered transaction can be read for a long time. If the index still names it, the
same op, read once more, has it delivered once more: doubled.
"""

from __future__ import annotations

from relay.state.discard_index import Discards
from relay.state.message_transaction import State, Transaction
from tests.mutants.runner.mutant import Harm, Mutant


def leave(self: Discards, transaction: Transaction) -> None:
    """It is still there, as far as anybody can fetch it."""
    transaction.state = State.PENDING
    self.unpin(transaction.id)


MUTANT = Mutant(
    "discard index",
    Harm.DOUBLED,
    Discards.leave,
    leave,
    ("tests/unit/relay/test_discards.py::test_what_was_delivered_is_not_delivered_again_when_the_op_is_read_again",),
)
