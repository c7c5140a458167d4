"""R51: a hanging transaction is ended as its coordinator decided it.

Without it, its checkpoint is always dropped: the relay delivers messages again that readers have already seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from relay.recovery.hanging_checkpoint import decided
from relay.recovery.transaction_state import Decision, Outcome
from tests.mutants.runner.mutant import Harm, Mutant


def _aborted(kafka: Mapping[str, str], admin: AdminClient, group: str, transactional_id: str) -> Decision:
    """Take for aborted whatever hangs."""
    del kafka, admin, group, transactional_id
    return Decision(Outcome.ABORTED, None)


MUTANT = Mutant(
    "R51",
    Harm.DOUBLED,
    decided,
    _aborted,
    (
        "tests/unit/relay/test_hanging.py::test_committed_transaction_is_ended_after_a_note",
        "tests/unit/relay/test_hanging.py::test_decision_that_is_not_written_is_not_guessed",
    ),
)
