"""R82: an application looks whether a relay delivers its message table.

Without it a table that no relay names has rows that wait for ever, and no log, metric or alert of any process says so.
"""

from __future__ import annotations

from outbox._table.owner_look import OwnerLook
from tests.mutants.runner.mutant import Harm, Mutant


def _never(self: OwnerLook) -> str:
    """Look at nothing."""
    del self
    return ""


MUTANT = Mutant(
    "R82",
    Harm.STUCK,
    OwnerLook.column,
    _never,
    ("tests/integration/library/test_owner_look.py::test_the_metric_begins_at_zero",),
)
