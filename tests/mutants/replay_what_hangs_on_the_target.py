"""Replay ledger: what hangs on a target partition is ended before anything is written there.

A broker may lose the abort of a killed run (KAFKA-20734). The next commit of the same producer then shows what it had
written: doubled.
"""

from __future__ import annotations

from spark_jobs.replaying.lane_writer import LaneWriter
from tests.mutants.runner.mutant import Harm, Mutant


def _wait_for_the_target(self: LaneWriter) -> None:
    """Whatever hangs there."""
    del self


MUTANT = Mutant(
    "replay ledger",
    Harm.DOUBLED,
    LaneWriter._wait_for_the_target,
    _wait_for_the_target,
    ("tests/integration/spark/test_replay_lane.py::test_what_hangs_on_the_target_is_ended_before_anything_is_written",),
)
