"""R25: the age of a check request is the difference of two append times of its partition, plus monotonic time.

With a wall clock that is ahead, the checker takes all requests for stale ones and drops them: what has no op marker is
stuck. With one that is behind, it works off a backlog that nobody needs.
"""

from __future__ import annotations

import time

from outbox._rules.request_age import STALE_MS, RequestAges
from tests.mutants.runner.mutant import Harm, Mutant


def is_stale(self: RequestAges, partition: int, offset: int, append_time: int, monotonic: int) -> bool:
    """Compare with the clock of this machine."""
    del self, partition, offset, monotonic
    return append_time < time.time_ns() // 1_000_000 - STALE_MS


MUTANT = Mutant(
    "R25",
    Harm.STUCK,
    RequestAges.is_stale,
    is_stale,
    (
        "tests/unit/outbox/test_request_age.py::test_request_age_of_first_record_is_zero",
        "tests/unit/outbox/test_request_age.py::test_request_age_behind_newest_record_ignores_it",
        "tests/unit/checker/test_check_intake.py::test_intake_with_a_wrong_wall_clock_reads_as_usual",
        "tests/integration/checker/test_checker.py::test_checker_with_a_wrong_clock_decides_and_ends",
    ),
)
