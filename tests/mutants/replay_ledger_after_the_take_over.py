"""Replay ledger: a replay reads what is written after it has taken the lane over, and not before.

Before, another process may still commit: what it commits between the look and the take-over is written once more by
the one that has looked too early: doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.replaying.kafka_transaction import KafkaTransaction
from spark_jobs.replaying.lane_writer import LandedRecord, LaneWriter
from tests.mutants.runner.mutant import Harm, Mutant


def _attempt(self: LaneWriter, part: Sequence[LandedRecord]) -> None:
    """Write what is not written of a part."""
    limit = self._replay.max_message_bytes[self._lane.topic]
    rest = self._look_up(part)
    with KafkaTransaction(self._replay.kafka, self._transactional_id, limit) as transaction:
        if rest:
            self._wait_for_the_target()
            self._write_in(transaction, rest)


MUTANT = Mutant(
    "replay ledger",
    Harm.DOUBLED,
    LaneWriter._attempt,
    _attempt,
    ("tests/integration/spark/test_replay_lane.py::test_what_another_has_written_before_the_take_over_is_left_out",),
)
