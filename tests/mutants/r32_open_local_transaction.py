"""R32: an operator decides nothing on a transaction whose local transaction is open.

With a COMMIT of the operator's in its place, the row of the application meets it: the application rolls back, tries
again, and its message is delivered twice, once for a change that never happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from outbox.operator.reading.database_view import DatabaseView
from outbox.protocol.check import CheckRequest
from tests.mutants.runner.mutant import Harm, Mutant


def _lock(self: DatabaseView, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> set[str]:
    """Ask nobody."""
    del self, connection
    return {request.transaction_id for request in requests}


MUTANT = Mutant(
    "R32",
    Harm.PHANTOM,
    DatabaseView._lock,
    _lock,
    (
        "tests/integration/operator/test_resolve.py::test_an_open_local_transaction_is_left_alone_at_the_last_moment_too",
    ),
)
