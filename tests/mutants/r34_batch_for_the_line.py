"""R34: after a time-out the next batch is half as large.

Without that a batch that the connection cannot carry in time is sent again from its beginning, and never gets through.
"""

from __future__ import annotations

from relay.batching.volume import Volume
from tests.mutants.runner.mutant import Harm, Mutant


def timed_out(self: Volume, messages: int, size: int, *, is_single: bool) -> None:
    """Leave the limit."""
    del self, messages, size, is_single


MUTANT = Mutant(
    "R34",
    Harm.STUCK,
    Volume.timed_out,
    timed_out,
    (
        "tests/unit/relay/test_volume.py::test_backlog_drains_over_a_thin_line",
        "tests/unit/relay/test_partition_worker.py::test_batch_after_a_time_out_is_half_as_large",
    ),
)
