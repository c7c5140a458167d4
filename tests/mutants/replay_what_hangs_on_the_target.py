"""Replay ledger: what hangs on a target partition is ended before anything is written there.

A broker may lose the abort of a killed run (KAFKA-20734). The next commit of the same producer then shows what it had
written: doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.replays.kafka_transaction import KafkaTransaction
from spark_jobs.replays.lane_writer import LandedRecord, LaneWriter
from spark_jobs.replays.plan import advanced
from tests.mutants.runner.mutant import Harm, Mutant


def _attempt(self: LaneWriter, part: Sequence[LandedRecord]) -> None:
    """Write what is not written of a part."""
    limit = self._replay.max_message_bytes[self._lane.topic]
    with KafkaTransaction(self._replay.kafka, self._transactional_id, limit) as transaction:
        self._progress = self._ledger.read().progress.get(self._lane)
        rest = self._unwritten(part)
        if not rest:
            return
        progress = advanced(self._progress, [(record.place, record.hashed) for record in rest])
        transaction.begin()
        transaction.write(self._outgoing(record) for record in rest)
        transaction.write([self._entry(progress)])
        transaction.commit()
    self._progress = progress


MUTANT = Mutant(
    "replay ledger",
    Harm.DOUBLED,
    LaneWriter._attempt,
    _attempt,
    ("tests/integration/test_replay_lane.py::test_what_hangs_on_the_target_is_ended_before_anything_is_written",),
)
