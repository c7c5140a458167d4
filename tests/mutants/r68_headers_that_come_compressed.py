"""R68: what a row of a message table unpacks to is bounded.

Postgres keeps large values compressed, and copies them so from one table to another. Counted as they are kept, half a
megabyte of headers may unpack to fifty in the relay, and a window has many rows.
"""

from __future__ import annotations

import re

from psycopg import sql

from outbox._postgres.message_table import MessageTable
from tests.mutants.runner.mutant import Harm, Mutant

_BOUNDED = MessageTable.statements
_CHECK = re.compile(r"CHECK \(octet_length\(producer_group\).*?<= 1000000\)", re.DOTALL)


def _statements(self: MessageTable, *, notify: bool | None = None) -> list[sql.Composed]:
    """Bound nothing."""
    texts = (_CHECK.sub("CHECK (true)", one.as_string()) for one in _BOUNDED(self, notify=notify))
    return [sql.Composed([sql.SQL(text)]) for text in texts]


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
