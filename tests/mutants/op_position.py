"""Op position: no op or verdict checkpoint passes an op whose half was not read, or whose effect is to come.

Passed, it is not read again after a crash. A decision on a half that lies ahead costs a check then; but one that an
operator took on what lies in the discard topic is taken once, and nobody asks about that again: the message is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from outbox.protocol.checkpoint import OpCheckpoint
from relay.ledger.partition_progress import OpProgress
from tests.mutants.runner.mutant import Harm, Mutant


def checkpoint(self: OpProgress, needed: Iterable[int | None]) -> OpCheckpoint:
    """How far was read."""
    del needed
    head = max(self.next, self._restored_head)
    return OpCheckpoint(head, head)


MUTANT = Mutant(
    "op position",
    Harm.LOST,
    OpProgress.checkpoint,
    checkpoint,
    (
        "tests/unit/relay/test_ledger.py::test_an_op_that_comes_before_its_half_is_kept_and_pins_the_op_partition",
        "tests/unit/relay/test_discards.py::test_a_commit_whose_effect_was_not_committed_has_it_after_the_crash",
        "tests/unit/relay/test_discards.py::test_an_operator_has_pre_flight_look_again",
    ),
)
