"""R6: a rollback marker leaves only where it is certain; a connection that was reset says nothing of what was before.

What the pool resets may be a later transaction, begun after COMMIT on another Connection with the same connection of
the driver. A rollback marker goes out for a transaction that committed, and its messages are lost.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.pool import PoolResetState

from outbox._publish import sqlalchemy_session
from tests.mutants.runner.mutant import Harm, Mutant


def _reset(dbapi_connection: Any, _record: Any, state: PoolResetState) -> None:
    """What was reset will have been the transaction that was sealed."""
    published = sqlalchemy_session._sealed_on(dbapi_connection)
    if published is None:
        return
    if state.transaction_was_reset:
        published.end("COMMIT was not sent" if published.connection.roll_back() else None)
    else:
        published.conclude()


MUTANT = Mutant(
    "R6",
    Harm.LOST,
    sqlalchemy_session._reset,
    _reset,
    ("tests/integration/library/test_session_more.py::test_a_reset_of_another_connection_that_shares_the_drivers",),
)
