"""R39: a committed row that names another half topic than its halves is never called COMMITTED.

Without it the checker counts the transaction as committed and sends no op marker: it is asked about for ever, is never
delivered, and nobody hears of it.
"""

from __future__ import annotations

from checker.rules.verdicts import Verdict, of_row
from outbox._rules.callback_row import Row
from tests.mutants.runner.mutant import Harm, Mutant


def _committed(row: Row, topic_id: str) -> Verdict:
    """Believe every row."""
    del topic_id
    return Verdict.COMMITTED if row.committed else Verdict.FENCED


MUTANT = Mutant(
    "R39",
    Harm.STUCK,
    of_row,
    _committed,
    ("tests/integration/library/test_recreated_channel.py::test_row_of_a_former_half_topic_needs_somebody",),
)
