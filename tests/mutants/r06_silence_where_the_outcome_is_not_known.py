"""R6: a rollback marker leaves only where COMMIT was not sent, or definitely failed; else silence.

COMMIT is sent, and its reply is lost: it may have succeeded. A library that takes the lost connection for a failure
sends a rollback marker, the relay settles the halves undelivered, and the message of a committed transaction is lost.
"""

from __future__ import annotations

from outbox._publish.local_connection import LocalConnection
from tests.mutants.runner.mutant import Harm, Mutant


def commit_definitely_failed(self: LocalConnection, error: BaseException) -> bool:
    """An error is a failure."""
    del self, error
    return True


MUTANT = Mutant(
    "R6",
    Harm.LOST,
    LocalConnection.commit_definitely_failed,
    commit_definitely_failed,
    ("tests/unit/outbox/test_commit_outcome.py::test_nothing_is_said_where_the_outcome_of_commit_is_not_known",),
)
