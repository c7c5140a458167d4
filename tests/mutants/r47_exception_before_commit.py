"""R47: an exception at any line leaves no connection in its transaction.

Without it, an exception of a signal handler between the seal and COMMIT leaves the row, its locks and the connection of
a pool in a transaction that nobody ends. Whoever takes the connection next commits what was given up.
"""

from __future__ import annotations

from outbox._publish.local_connection import LocalConnection
from outbox._publish.participant import Participant
from outbox.transaction import _abandon
from tests.mutants.runner.mutant import Harm, Mutant


def _leave(connection: LocalConnection, part: Participant, error: BaseException, *, sealed: bool) -> None:
    """Do nothing after the seal."""
    del error
    if not sealed:
        connection.roll_back()
        part.rolled_back("it was rolled back")


MUTANT = Mutant(
    "R47",
    Harm.STUCK,
    _abandon,
    _leave,
    ("tests/integration/library/test_raw_ends.py::test_exception_at_any_line_gives_both_or_neither",),
)
