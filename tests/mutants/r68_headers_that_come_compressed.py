"""R68: what a row of a message table unpacks to is bounded.

Postgres keeps large values compressed, and copies them so from one table to another. Counted as they are kept, half a
megabyte of headers may unpack to fifty in the relay, and a window has many rows.
"""

from __future__ import annotations

from psycopg import sql

from outbox._postgres.message_table import MessageTable
from tests.mutants.runner.mutant import Harm, Mutant

_BOUNDED = MessageTable.statements


def _statements(self: MessageTable, *, notify: bool | None = None) -> list[sql.Composed]:
    """Bound nothing."""
    return [one for one in _BOUNDED(self, notify=notify) if "outbox_bounds" not in one.as_string()]


MUTANT = Mutant(
    "R68",
    Harm.STUCK,
    MessageTable.statements,
    _statements,
    (
        "tests/integration/relay/test_row_bounds.py::test_headers_that_come_compressed_are_counted_unpacked",
        "tests/integration/relay/test_row_bounds.py::test_names_are_bounded",
    ),
)
