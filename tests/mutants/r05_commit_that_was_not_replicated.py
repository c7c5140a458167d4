"""R5: a COMMIT whose wait for the standby was cancelled is not one that was seen to succeed.

The row is visible, and Postgres warns that it may be on this server alone. A marker would have the message delivered at
once; if the server is lost then, the standby never had the change: a phantom. The checker's own write waits.
"""

from __future__ import annotations

import psycopg

from outbox._publish.seal import Seal
from tests.mutants.runner.mutant import Harm, Mutant


def _notice(self: Seal, diagnostic: psycopg.errors.Diagnostic) -> None:
    """A notice is no error."""
    del self, diagnostic


MUTANT = Mutant(
    "R5",
    Harm.PHANTOM,
    Seal._notice,
    _notice,
    ("tests/integration/relay/test_restarts.py::test_a_commit_that_was_not_replicated_is_left_to_the_checker",),
)
