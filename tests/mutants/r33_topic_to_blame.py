"""R33: a real topic whose records Kafka did not acknowledge is closed for a while in its half partition.

Without that the batch that failed is written again as it was, and fails again: all other topics of the half partition
wait as long as the one.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.kafka.refusals import Blame, Refusals
from tests.mutants.runner.mutant import Harm, Mutant


def failed(self: Refusals, found: Blame, cost: int, now: int) -> Mapping[str, int]:
    """Close nothing."""
    del self, found, cost, now
    return {}


MUTANT = Mutant(
    "R33",
    Harm.STUCK,
    Refusals.failed,
    failed,
    (
        "tests/unit/relay/test_partition_worker.py::test_refused_topic_waits_and_the_others_go_on",
        "tests/unit/relay/test_refusals.py::test_closed_topic_opens_after_its_pause",
    ),
)
