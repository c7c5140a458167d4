"""The current state of a topic: of each key the newest record, none where a null value has deleted the key.

    <output>/current/<topic>/    the columns of the records, one row for each key

After a batch of records is landed, those of its topic are merged: one Delta transaction, with the number of the batch,
which Delta passes over if it comes again, also from a driver that was taken for dead. A driver that was killed between
the two is made up for by the next one, and so is a state that begins later than the records: what is merged is all
from the state's last batch to the one that is landed.

Within a partition the higher offset is newer. A key changes its partition if the topic gets more of them, or if its
producers choose partitions differently; between partitions the later timestamp is newer.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from spark_jobs.tables.delta_table import FORMAT, Table, once
from spark_jobs.tables.progress import Progress

CURRENT = "current"

_VIEW = "outbox_land_batch"

_MERGE = """
MERGE INTO {state} AS state USING {batch} AS batch ON state.key = batch.key
WHEN MATCHED AND {newer} AND batch.value IS NULL THEN DELETE
WHEN MATCHED AND {newer} THEN UPDATE SET *
WHEN NOT MATCHED AND batch.value IS NOT NULL THEN INSERT *
"""

_NEWER = """CASE WHEN batch.partition = state.partition THEN batch.offset > state.offset
ELSE struct(batch.timestamp, batch.offset) > struct(state.timestamp, state.offset) END"""

_PROPERTIES = {"delta.enableDeletionVectors": "true"}
"""A batch then writes its own rows, and not each file that has one of its keys."""


class CurrentState(Table):
    """The table of one topic.

    Args:
        records: The table of records.
    """

    def __init__(self, records: Table, topic: str) -> None:
        super().__init__(records.spark, records.output, f"{CURRENT}/{topic}")
        self._records = records
        self._topic = topic
        self._merged: int | None = None
        """The last batch that is merged; None before the first look."""

    def merge(self, progress: Progress) -> None:
        """Merge what is landed and not merged yet, up to a batch."""
        if self._merged is None:
            self._merged = self._begin(progress)
        if self._merged < progress.batch_id:
            self._newest(self._merged, progress.batch_id).createOrReplaceTempView(_VIEW)
            self.run(_MERGE.format(state=self.quoted, batch=_VIEW, newer=_NEWER), once(progress))
            self._merged = progress.batch_id

    def _begin(self, progress: Progress) -> int:
        """Return the last batch that is merged, in a table that is made if it is missing."""
        found = self.progress()
        if found is None:
            first = Progress(progress.query_id, -1, {}, {}, {}).encode()
            writer = self._records.read().limit(0).write.format(FORMAT).option("userMetadata", first)
            writer.options(**_PROPERTIES).mode("errorifexists").save(self.path)
            return -1
        return found.batch_id

    def _newest(self, after: int, until: int) -> DataFrame:
        """Return the newest record of each key in some batches."""
        found = self._records.read().where(
            (f.col("topic") == self._topic) & f.col("batch_id").between(after + 1, until) & f.col("key").isNotNull()
        )
        # One shuffle serves both windows, because the rows of a key are in one place.
        last = Window.partitionBy("key", "partition").orderBy(f.desc("offset"))
        newest = Window.partitionBy("key").orderBy(f.desc("timestamp"), f.desc("offset"))
        of_partitions = found.repartition("key").withColumn("_n", f.row_number().over(last)).where("_n = 1")
        return of_partitions.withColumn("_n", f.row_number().over(newest)).where("_n = 1").drop("_n")
