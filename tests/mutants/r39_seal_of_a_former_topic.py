"""R39: a transaction whose halves lie in a half topic that was made again is rolled back at its seal.

Without it, an application that runs on after a channel was made again commits, and nothing is delivered until somebody
restarts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox._publish.sender import Sender
from outbox._rules.half_place import HalfPlace
from tests.mutants.runner.mutant import Harm, Mutant


def _pass(self: Sender, place: HalfPlace, offsets: Sequence[int]) -> None:
    """Look at nothing."""
    del self, place, offsets


MUTANT = Mutant(
    "R39",
    Harm.STUCK,
    Sender.require_same_topic,
    _pass,
    ("tests/integration/library/test_recreated_channel.py::test_transaction_of_a_former_half_topic_is_rolled_back",),
)
