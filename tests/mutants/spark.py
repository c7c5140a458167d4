"""Spark jobs: how a replay reads its ledger."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jobs.replaying.kafka_transaction import KafkaTransaction
from spark_jobs.replaying.lane_writer import LandedRecord, LaneWriter
from spark_jobs.replaying.progress_log import PARTITION, Entries, Ledger
from tests.mutants.runner.catalogue import fails, mutant
from tests.mutants.runner.mutant import Harm


@mutant(LaneWriter._attempt, "replay ledger", Harm.DOUBLED)
@fails("integration/spark/test_replay_lane.py::test_what_another_has_written_before_the_take_over_is_left_out")
def replay_ledger_after_the_take_over(self: LaneWriter, part: Sequence[LandedRecord]) -> None:
    """A replay reads what is written after it has taken the lane over, and not before. Before, another process may
    still commit: what it commits between the look and the take-over is written once more: doubled."""
    limit = self._replay.max_message_bytes[self._lane.topic]
    rest = self._look_up(part)
    with KafkaTransaction(self._replay.kafka, self._transactional_id, limit) as transaction:
        if rest:
            self._wait_for_the_target()
            self._write_in(transaction, rest)


@mutant(Ledger.read, "replay ledger", Harm.DOUBLED)
@fails("integration/spark/test_replay_lane.py::test_progress_of_a_lane_behind_an_open_transaction_is_waited_for")
def replay_ledger_to_its_end(self: Ledger) -> Entries:
    """A replay reads it to the high watermark, and waits for what is open below it. A reader of committed records sees
    a partition up to the first open transaction. The progress of a lane may lie behind one of another replay: it is
    committed, and not seen. Whoever takes that for "not written" writes it once more: doubled."""
    if self._reader.partitions(self._topic):
        self._take(self._end(self._topic, PARTITION, stable=True))
    return self._entries


@mutant(LaneWriter._wait_for_the_target, "replay ledger", Harm.DOUBLED)
@fails("integration/spark/test_replay_lane.py::test_what_hangs_on_the_target_is_ended_before_anything_is_written")
def replay_what_hangs_on_the_target(self: LaneWriter) -> None:
    """What hangs on a target partition is ended before anything is written there. A broker may lose the abort of a
    killed run (KAFKA-20734). The next commit of the same producer then shows what it had written: doubled."""
