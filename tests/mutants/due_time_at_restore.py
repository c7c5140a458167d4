"""Due time at restore: a half is due by its own append time, also for a relay that reads it later.

If the time counts from the reading, each restart puts all checks off. A relay that is restarted more often than
`transaction_timeout_ms`, by whatever kills it, never asks about anything: what has no op marker is stuck, and its
ordering key behind it.
"""

from __future__ import annotations

from outbox.protocol.half import HalfControl
from relay.ledger.ledger import Ledger
from relay.state.half_records import Half
from tests.mutants.runner.mutant import Harm, Mutant


def _due(self: Ledger, half: Half, control: HalfControl) -> int:
    """When a transaction is asked about first: a while from now."""
    age = self._policy.transaction_timeout_ms if control.options.immunity is None else control.options.immunity
    return max(half.append_time, self.overdue.ops_known_until()) + age


MUTANT = Mutant(
    "due time at restore",
    Harm.STUCK,
    Ledger._due,
    _due,
    ("tests/unit/relay/test_ledger.py::test_what_was_due_before_a_restart_is_due_at_once_after_it",),
)
