"""R37: a half that the discard topic cannot keep leaves as a stub.

Without it the Kafka transaction that discards it fails for ever, and all behind it in its half partition stands still.
"""

from __future__ import annotations

from relay.batching.stubs import keepable
from relay.state.half_records import Half
from tests.mutants.runner.mutant import Harm, Mutant


def _whole(half: Half, most: int) -> Half:
    """Keep it whole, whatever its size."""
    del most
    return half


MUTANT = Mutant(
    "R37",
    Harm.STUCK,
    keepable,
    _whole,
    (
        "tests/unit/relay/test_poison.py::test_discarded_stub_fits_the_discard_topic",
        "tests/integration/relay/test_poison.py::test_half_that_unpacks_to_too_much_leaves_as_a_stub",
    ),
)
