"""R38: halves that were removed before they were settled are never passed without an operator's word.

Without it, committed messages that retention removed before they were delivered are lost, and nobody hears of it.
"""

from __future__ import annotations

from outbox.protocol.checkpoint import HalfCheckpoint
from relay.recovery.restore import _without_lost_halves
from tests.mutants.runner.mutant import Harm, Mutant


def _skip(topic: str, number: int, checkpoint: HalfCheckpoint, start: int, *, skip_lost: bool) -> HalfCheckpoint:
    """Go on behind what is lost."""
    del topic, number, skip_lost
    return checkpoint.without(start)[0]


MUTANT = Mutant(
    "R38",
    Harm.LOST,
    _without_lost_halves,
    _skip,
    ("tests/integration/relay/test_discard.py::test_halves_that_are_gone_from_the_topic_stop_the_relay",),
)
