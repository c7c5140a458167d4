"""R43: a service is ready only as a member of its group.

Without it, a relay that cannot join is ready and serves nothing: a rolling update replaces good relays by it, and what
is published is stuck.
"""

from __future__ import annotations

from outbox._service.membership import not_joined
from tests.mutants.runner.mutant import Harm, Mutant


def _never(group_metadata: bytes, group: str) -> str | None:
    """Be ready before the group is joined."""
    del group_metadata, group
    return None


MUTANT = Mutant(
    "R43",
    Harm.STUCK,
    not_joined,
    _never,
    ("tests/unit/outbox/test_membership.py::test_membership_without_a_generation_is_not_ready",),
)
