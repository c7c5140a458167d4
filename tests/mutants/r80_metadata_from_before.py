"""R80: what was known of real topics before a broker was lost is dropped.

For up to half a minute it lists all replicas as in sync, and a Kafka transaction on a topic that needs the dead broker
has no end until it is back: its half partition or table source waits with all topics.
"""

from __future__ import annotations

from relay.batching.topic_gate import Gate
from tests.mutants.runner.mutant import Harm, Mutant

_turn = Gate.turn


def turn(self: Gate, now: int, *, is_stale: bool = False) -> set[str]:
    """It was right a moment ago."""
    del is_stale
    return _turn(self, now)


MUTANT = Mutant(
    "R80",
    Harm.STUCK,
    Gate.turn,
    turn,
    (
        "tests/unit/relay/test_gate.py::test_metadata_from_before_a_broker_was_lost_is_dropped",
        "tests/unit/relay/test_gate.py::test_closed_topic_is_described_as_soon_as_the_brokers_have_changed",
    ),
)
