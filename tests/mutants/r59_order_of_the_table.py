"""R59: rows of a foreign table have the order of its order column, whatever their ids are.

Without it messages of one key are written in the order of random UUIDs, and a consumer applies changes in the wrong
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from relay.tables.foreign.foreign_rows import ForeignRow, RowReader
from relay.tables.rows import Row
from tests.mutants.runner.mutant import Harm, Mutant


def _by_id(self: RowReader, found: Iterable[ForeignRow]) -> Iterator[Row]:
    """Yield rows in the order of their ids."""
    return (self._row(place, row) for place, row in enumerate(sorted(found, key=lambda row: row.id)))


MUTANT = Mutant(
    "R59",
    Harm.OUT_OF_ORDER,
    RowReader.rows,
    _by_id,
    ("tests/unit/relay/test_foreign_rows.py::test_order_is_that_of_the_rows_whatever_their_ids_are",),
)
