"""R67: notifications that come while nothing waits for them are dropped.

A source goes on listening between two waits. Without the rule psycopg keeps each notification that comes meanwhile, and
any role of the database can send gigabytes of them to a source that has rows to deliver.
"""

from __future__ import annotations

from outbox._postgres.notifications import Notifications
from tests.mutants.runner.mutant import Harm, Mutant


def _drop(self: Notifications) -> None:
    """Keep them."""
    del self


MUTANT = Mutant(
    "R67",
    Harm.STUCK,
    Notifications.drop,
    _drop,
    ("tests/integration/relay/test_notifications.py::test_notifications_that_nothing_waits_for_are_dropped",),
)
