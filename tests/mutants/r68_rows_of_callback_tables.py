"""R68: what a row of a callback table unpacks to is bounded.

An application may insert into it. Postgres keeps 250 MB of one letter in 3 MB, and the checker, which serves other
teams, too, reads it whole.
"""

from __future__ import annotations

import re

from psycopg import sql

from outbox._postgres.callback_table import CallbackTable
from tests.mutants.runner.mutant import Harm, Mutant

_BOUNDED = CallbackTable.statements
_CHECK = re.compile(r"CHECK \(octet_length.*?\+00'\)")


def _statements(self: CallbackTable) -> list[sql.Composed]:
    """Bound nothing."""
    texts = (_CHECK.sub("CHECK (true)", one.as_string()) for one in _BOUNDED(self))
    return [sql.Composed([sql.SQL(text)]) for text in texts]


MUTANT = Mutant(
    "R68",
    Harm.STUCK,
    CallbackTable.statements,
    _statements,
    ("tests/integration/checker/test_callback_bounds.py::test_a_row_beyond_the_bounds_is_refused",),
)
