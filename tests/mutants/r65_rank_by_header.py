"""R65: rank is proven by place; a header alone proves none.

Every application of a channel may write to the op topic. One that writes an op record with the source `checker` or
`operator` there overrules the producer: a ROLLBACK drops messages of a transaction that committed, a COMMIT shows those
of one that did not, and nobody looks the row up.
"""

from __future__ import annotations

from outbox.protocol.op import OpSource, refuse_misplaced
from tests.mutants.runner.mutant import Harm, Mutant


def _believe(source: OpSource, *, verdict: bool) -> None:
    """Believe what the header names."""
    del source, verdict


MUTANT = Mutant(
    "R65",
    Harm.LOST,
    refuse_misplaced,
    _believe,
    (
        "tests/unit/protocol/test_op.py::test_rank_is_proven_by_the_topic_of_the_record",
        "tests/unit/relay/test_poison.py::test_decoder_drops_an_op_of_a_source_of_another_topic",
    ),
)
