"""R5: what is sealed must still be in its transaction, and that must be healthy.

Something else may have ended it: a raw ROLLBACK, a pooler. The INSERT of the row begins another transaction then, which
commits without the business rows: the message is delivered of a change that never happened, a phantom.
"""

from __future__ import annotations

from outbox._publish.local_connection import LocalConnection
from tests.mutants.runner.mutant import Harm, Mutant


def require_healthy(self: LocalConnection, *, begun: bool = True) -> None:
    """COMMIT will tell."""
    del self, begun


MUTANT = Mutant(
    "R5",
    Harm.PHANTOM,
    LocalConnection.require_healthy,
    require_healthy,
    (
        "tests/unit/outbox/test_commit_outcome.py::test_what_is_outside_its_transaction_or_in_a_failed_one_is_not_sealed",
    ),
)
