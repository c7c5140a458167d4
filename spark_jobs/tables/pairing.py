"""Whether an output, a checkpoint and the topics belong together, seen before anything is written."""

from collections.abc import Mapping

from pyspark.sql import DataFrame

from spark_jobs.runtime.errors import LostRecordsError, OutputError
from spark_jobs.runtime.spans import Offsets, needed_text
from spark_jobs.tables.delta_output import RECORDS, Output
from spark_jobs.tables.progress import Progress
from spark_jobs.tables.query_checkpoint import Checkpoint

ANOTHER = "begin another output with another checkpoint"


class Pair:
    """An output, and the checkpoint that counts its batches. One process at a time may use it.

    Attributes:
        last: Progress of the last commit; None before the first batch.
    """

    def __init__(self, output: Output, checkpoint: Checkpoint) -> None:
        self.output = output
        self.checkpoint = checkpoint
        self.last = output.progress()

    def check(self, topics: Mapping[str, str]) -> None:
        """Refuse an output and a checkpoint of which one has not what the other has done, and topics that changed."""
        self.check_owner()
        landed = -1 if self.last is None else self.last.batch_id
        if self.last is not None:
            if gone := sorted(set(self.last.topics) - set(topics)):
                raise OutputError(
                    f"Topic {', '.join(gone)} was landed in {self.output} until batch {landed} and is not named any "
                    f"more. Name it, or {ANOTHER}."
                )
            check_ids(self.last.topics, topics, self.kept(), f"since batch {landed}")
        committed = self.checkpoint.last_commit()
        if committed is not None and committed > landed:
            raise OutputError(
                f"{self.checkpoint} has landed batches up to {committed}, {self.output} has none of them from "
                f"{landed + 1} on. Name the output that belongs to it, or a new checkpoint."
            )

    def check_owner(self) -> None:
        """Refuse an output of another checkpoint, or of another writer."""
        if self.last is None and self.output.exists:
            raise OutputError(
                f"{self.output} has a Delta table {RECORDS}, and no commit of land is in its log: another job wrote "
                "it, or the log was cut. Name another output with another checkpoint."
            )
        if self.last is not None and self.last.query_id != self.checkpoint.query_id():
            raise OutputError(
                f"{self.output} was landed with another checkpoint than {self.checkpoint}. Name that checkpoint, or "
                "another output."
            )

    def claim(self) -> Progress:
        """Return the last progress; at first, make the output that of the checkpoint."""
        if self.last is None:
            begins = self.checkpoint.start(0)
            first = Progress(self.checkpoint.query_id() or "", -1, begins, begins, {})
            self.output.create(first)
            self.last = first
        return self.last

    def commit(self, progress: Progress, rows: DataFrame | None = None) -> None:
        """Append a batch to the records; `Output.commit` has the arguments."""
        self.output.commit(progress, rows)
        self.last = progress

    def is_landed(self, batch_id: int) -> bool:
        """Whether a batch that Spark hands over is in the output."""
        last = self.last
        if last is None or batch_id > last.batch_id:
            return False
        if (batch_id, self.checkpoint.end(batch_id)) != (last.batch_id, last.end) or last.by_operator:
            raise OutputError(
                f"Batch {batch_id} of {self.output} was landed with other offsets than {self.checkpoint} now has for "
                "it, as after the checkpoint was put back from a copy. Nothing was written. Land into another output."
            )
        return True

    def is_unfinished(self) -> bool:
        """Whether Spark has not committed the last batch: the look at the topics after it may be missing."""
        last, committed = self.last, self.checkpoint.last_commit()
        if last is None or last.by_operator or last.batch_id < 0:
            return False
        return committed is None or committed < last.batch_id

    def needed(self) -> Offsets:
        """Return the first offsets that are not landed; empty before the first batch is planned."""
        return self.checkpoint.start(0) if self.last is None else self.last.end

    def kept(self) -> Offsets:
        """Return the first offsets that are not landed, or are not landed for sure, as of an unfinished batch."""
        return self.last.start if self.last is not None and self.is_unfinished() else self.needed()

    def catch_up(self) -> None:
        """Bring the checkpoint behind the last batch, if an operator's command wrote it and was killed."""
        last = self.last
        if last is None or not last.by_operator or last.query_id != self.checkpoint.query_id():
            return
        committed = self.checkpoint.last_commit()
        done = committed is not None and committed >= last.batch_id
        # Where the checkpoint ends before the batch; a copy that was put back may not have it.
        before = self.checkpoint.planned(last.batch_id - 1) if last.batch_id else self.checkpoint.start(0)
        if not done and before == last.start:
            self.checkpoint.skip(last.batch_id, last.end)


def check_ids(before: Mapping[str, str], now: Mapping[str, str], landed: Offsets, when: str) -> None:
    """Refuse topics that were deleted and recreated: their offsets mean other records.

    Args:
        before: Ids by name, as they were.
        now: Ids by name, as they are; a topic that is missing is gone.
        landed: Ends of what is landed of the topics as they were.
        when: Since when, for people.
    """
    if gone := [name for name, topic_id in before.items() if now.get(name) != topic_id]:
        found = [name for name in gone if name in now]
        again = f", and another topic named {', '.join(found)} exists now" if found else ""
        not_landed = needed_text(landed, gone) or "anything"
        raise LostRecordsError(
            f"Topic {', '.join(gone)} was deleted {when}{again}; not landed of it: {not_landed}. "
            f"To go on without it, {ANOTHER}."
        )
