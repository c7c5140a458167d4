"""R41: the server ends the session of a client that stands still inside a transaction.

Without it, a checker that was stopped or frozen inside a fence keeps its advisory locks: no other checker can decide
these transactions, and their ordering keys wait behind them for as long as it stands.
"""

from __future__ import annotations

from outbox._postgres.server_limits import server_limits
from tests.mutants.runner.mutant import Harm, Mutant


def unlimited(idle_seconds: int) -> str:
    """Set no limit."""
    del idle_seconds
    return ""


MUTANT = Mutant(
    "R41",
    Harm.STUCK,
    server_limits,
    unlimited,
    ("tests/integration/checker/test_checker.py::test_stopped_checker_is_replaced_and_does_no_harm",),
)
