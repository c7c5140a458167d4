"""R84: only a half partition that begins at offset 0, and never had a discard, is resumed by what real topics show.

Without it halves that are gone, or that were discarded and dropped by an operator, count as never seen.
"""

from __future__ import annotations

from outbox._kafka.range_reader import Span
from outbox.operator.deciding.partition_resumption import ChannelResumption
from tests.mutants.runner.mutant import Harm, Mutant


def _none(self: ChannelResumption, span: Span, discards: int | None) -> str:
    """Refuse nothing."""
    del self, span, discards
    return ""


MUTANT = Mutant(
    "R84",
    Harm.LOST,
    ChannelResumption._refusal,
    _none,
    ("tests/integration/relay/test_grown_channel.py::test_what_real_topics_cannot_prove_is_refused",),
)
