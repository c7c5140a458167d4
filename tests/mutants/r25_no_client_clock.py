"""R25: ages are broker append times plus monotonic time; no clock of a client decides anything.

With a clock that is behind, nobody is ever overdue, and what has no op marker is stuck. With one that is ahead,
everybody is overdue at once: each transaction costs a check, and slow ones are fenced that were in time.
"""

from __future__ import annotations

import time

from outbox._rules.broker_clock import BrokerClock
from tests.mutants.runner.mutant import Harm, Mutant


def now(self: BrokerClock, monotonic: int) -> int:
    """What this machine's clock says."""
    del self, monotonic
    return time.time_ns() // 1_000_000


MUTANT = Mutant(
    "R25",
    Harm.STUCK,
    BrokerClock.now,
    now,
    (
        "tests/unit/relay/test_overdue.py::test_the_clock_knows_nothing_before_it_saw_something",
        "tests/unit/relay/test_overdue.py::test_the_clock_goes_on_by_itself_after_the_newest_append",
        "tests/unit/relay/test_overdue.py::test_an_older_append_does_not_turn_the_clock_back",
    ),
)
