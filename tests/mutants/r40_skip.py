"""R40: an operator's skip passes by a record that halts its half partition.

Without it the half partition stands still for as long as the half topic has the record: 14 days, or what the topic is
set to.
"""

from __future__ import annotations

from confluent_kafka import Message

from relay.kafka.decode import Decoder
from tests.mutants.runner.mutant import Harm, Mutant


def _never(self: Decoder, message: Message) -> str | None:
    """Obey no skip."""
    del self, message
    return None


MUTANT = Mutant(
    "R40",
    Harm.STUCK,
    Decoder._why_skipped,
    _never,
    ("tests/unit/relay/test_poison.py::test_decoder_skips_only_what_it_cannot_read",),
)
