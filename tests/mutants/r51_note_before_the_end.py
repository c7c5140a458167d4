"""R51: a note names the checkpoint that is not gone on from, should the end of a committed transaction be cut off.

Without it, a relay goes on from the checkpoint before that one, and delivers messages again that readers have seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TopicPartition

from relay.recovery.hanging_checkpoint import Checkpointed, Word, refuse_undone_end
from tests.mutants.runner.mutant import Harm, Mutant


def _accept(kafka: Mapping[str, str], owner: Checkpointed, checkpoint: TopicPartition | None, word: Word) -> None:
    """Go on from any checkpoint."""
    del kafka, owner, checkpoint, word


MUTANT = Mutant(
    "R51",
    Harm.DOUBLED,
    refuse_undone_end,
    _accept,
    ("tests/unit/relay/test_hanging.py::test_committed_transaction_is_ended_after_a_note",),
)
