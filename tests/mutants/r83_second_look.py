"""R83: before a dead letter whose reason depends on a topic, the topic is described once more.

An application sees a limit that was raised and publishes; the relay remembers the old one, and the message waits for an
operator, who sees nothing wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.batching.preflight import LookAgain, T, refused
from relay.state.message_transaction import Finding
from tests.mutants.runner.mutant import Harm, Mutant


def _refused(
    transactions: Sequence[T], judge: Callable[[T], Finding | None], look_again: LookAgain
) -> dict[T, Finding]:
    """What is remembered will do."""
    del look_again
    return {transaction: finding for transaction in transactions if (finding := judge(transaction))}


MUTANT = Mutant(
    "R83",
    Harm.STUCK,
    refused,
    _refused,
    (
        "tests/unit/relay/test_partition_worker.py::test_before_a_dead_letter_the_topic_is_looked_at_once_more",
        "tests/unit/relay/test_table_admission.py::test_before_a_dead_letter_the_topic_is_described_once_more",
    ),
)
