"""R53: a row that cannot be read decides nothing and stops nobody.

Without it the checker copies offsets that do not fit into an op record. The relay calls the whole record malformed, and
the answers to all other transactions in it are lost.
"""

from __future__ import annotations

from outbox._rules.callback_row import Row, read_row
from outbox.protocol.positions import Positions
from tests.mutants.runner.mutant import Harm, Mutant


def _believe(state: str, topic_id: str, partition: int, first_offset: int, last_offset: int, positions: str) -> Row:
    """Take what stands there."""
    return Row(state == "C", topic_id, partition, first_offset, last_offset, Positions.parse(positions))


MUTANT = Mutant(
    "R53",
    Harm.STUCK,
    read_row,
    _believe,
    ("tests/unit/checker/test_verdicts.py::test_row_whose_offsets_do_not_fit_is_damaged",),
)
