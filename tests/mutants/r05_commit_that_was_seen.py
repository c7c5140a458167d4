"""R5: only a COMMIT that was seen to succeed sends an op marker; an idle connection alone says nothing.

COMMIT may have failed, and a handler of the user's may have kept that from the library: the connection is idle then,
too. A marker that says COMMIT goes out, and the message of a transaction that was rolled back is delivered: a phantom.
"""

from __future__ import annotations

from outbox._publish.sqlalchemy_session import PublishedTransaction
from tests.mutants.runner.mutant import Harm, Mutant


def _has_rows(self: PublishedTransaction, *, presumed: bool) -> bool | None:
    """An idle connection: it will have committed."""
    del self, presumed
    return True


MUTANT = Mutant(
    "R5",
    Harm.PHANTOM,
    PublishedTransaction._has_rows,
    _has_rows,
    ("tests/unit/outbox/test_commit_outcome.py::test_an_idle_connection_is_no_proof_of_a_commit",),
)
