"""Replay ledger: a replay reads it to the high watermark, and waits for what is open below it.

A reader of committed records sees a partition up to the first open transaction. The progress of a lane may lie behind
one of another replay: it is committed, and not seen. Whoever takes that for "not written" writes it once more: doubled.
"""

from __future__ import annotations

from spark_jobs.replaying.progress_log import PARTITION, Entries, Ledger
from tests.mutants.runner.mutant import Harm, Mutant


def read(self: Ledger) -> Entries:
    """All that a reader of committed records sees at this moment."""
    if self._reader.partitions(self._topic):
        self._take(self._end(self._topic, PARTITION, stable=True))
    return self._entries


MUTANT = Mutant(
    "replay ledger",
    Harm.DOUBLED,
    Ledger.read,
    read,
    ("tests/integration/spark/test_replay_lane.py::test_progress_of_a_lane_behind_an_open_transaction_is_waited_for",),
)
