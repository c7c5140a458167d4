"""R59: the message id of a foreign row is made of the row's id alone.

Without it a row that comes again, in another local transaction or behind other rows, has another message id. Consumers
that deduplicate by it process the message twice.
"""

from __future__ import annotations

import uuid

from relay.tables.foreign.foreign_rows import RowReader
from tests.mutants.runner.mutant import Harm, Mutant


def _new(self: RowReader, id_: str) -> str:
    """Return another id each time."""
    del self, id_
    return str(uuid.uuid4())


MUTANT = Mutant(
    "R59",
    Harm.DOUBLED,
    RowReader.message,
    _new,
    ("tests/unit/relay/test_foreign_rows.py::test_message_id_is_that_of_the_row_alone",),
)
