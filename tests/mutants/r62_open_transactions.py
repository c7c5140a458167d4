"""R62: a table source reads from an id below which no open transaction can commit a row.

Without it, a row that was given its id early and committed late is below the id from which the source reads.
"""

from __future__ import annotations

from collections.abc import Collection

from relay.tables.id_floor import IdFloor
from tests.mutants.runner.mutant import Harm, Mutant


def _look(self: IdFloor, writers: Collection[str], now: float) -> None:
    """Take no transaction for open."""
    del writers, now
    self._complete = self._newest


MUTANT = Mutant(
    "R62",
    Harm.LOST,
    IdFloor.look,
    _look,
    ("tests/unit/relay/test_id_floor.py::test_id_of_an_open_transaction_is_waited_for",),
)
