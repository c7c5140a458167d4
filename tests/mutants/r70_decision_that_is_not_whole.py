"""R70: a decision on several transactions counts whole or not at all.

Without the rule a record that names one decision and has entries of the other, or fewer than it names, is applied in
part: messages of a writer are shown whose others are rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox.protocol.op import OpEntry, refuse_partial
from tests.mutants.runner.mutant import Harm, Mutant


def _believe(first_line: str, entries: Sequence[OpEntry]) -> None:
    """Take the entries as they are."""
    del first_line, entries


MUTANT = Mutant(
    "R70",
    Harm.PHANTOM,
    refuse_partial,
    _believe,
    (
        "tests/unit/protocol/test_vectors.py::test_malformed_decision_of_the_vector_is_refused_whole",
        "tests/unit/relay/test_poison.py::test_decoder_applies_nothing_of_a_decision_that_is_not_whole",
    ),
)
