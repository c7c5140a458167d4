"""Writing batches so that a batch that Spark replays is in the table once.

Spark hands a batch over again if the process died before the batch was committed in the checkpoint. So the order is:
rows into a folder that nobody reads, the folder renamed to the batch's name, the manifest. Without a manifest the batch
is written again, over what the first try left; with one the rows stand, and nothing is done.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from outbox.failpoints import failpoint
from spark_jobs.checkpoint import Checkpoint
from spark_jobs.errors import JobFailedError, OutputError, reason
from spark_jobs.folder import Folder
from spark_jobs.jvm import JAVA_ERRORS
from spark_jobs.manifest import Checksum, Manifest, PartitionRows
from spark_jobs.table import COLUMNS, MANIFESTS, PARTITIONED_BY, WRITING, batch_folder, manifest_file

WRITE = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""The manifest says that a batch is complete; no other marker does."""

log = structlog.get_logger()


class BatchWriter:
    """Writes the batches of one query; to be called by `foreachBatch`.

    Args:
        job_id: The job.
        table: The table's folder.
        checkpoint: The query's checkpoint.
        topics: Ids of the topics by name.

    Attributes:
        failure: The error that ended the last batch; Spark shows only its own.
        batches: Batches written.
        rows: Rows written.
    """

    def __init__(self, job_id: str, table: Folder, checkpoint: Checkpoint, topics: Mapping[str, str]) -> None:
        self._job_id = job_id
        self._topics = topics
        self._table = table
        self._checkpoint = checkpoint
        # A driver that was killed may leave a JVM that writes on for a moment: no two runs share a folder.
        self._run = uuid.uuid4().hex
        self.failure: Exception | None = None
        self.batches = 0
        self.rows = 0

    def prepare(self) -> None:
        """Make the table's folders, and remove what killed runs left.

        Raises:
            OutputError: Table and checkpoint do not belong together, or the table cannot be written.
        """
        check_pair(self._table, self._checkpoint, self._topics)
        self._table.delete(WRITING)
        self._table.make(WRITING)
        self._table.make(MANIFESTS)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Land a batch.

        Args:
            batch: Its rows, with the columns of the table.
            batch_id: Its number.
        """
        try:
            self._land(batch, batch_id)
        except JAVA_ERRORS as error:
            self.failure = JobFailedError(f"batch {batch_id} failed: {reason(error)}")
            raise
        except Exception as error:
            self.failure = error
            raise

    def _land(self, batch: DataFrame, batch_id: int) -> None:
        if self._is_landed(batch_id):
            log.info("batch was landed before", batch=batch_id)
            return
        began = time.monotonic()
        written = f"{WRITING}/{self._run}-{batch_id}"
        batch.write.options(**WRITE).partitionBy(*PARTITIONED_BY).parquet(self._table.path(written), mode="overwrite")
        manifest = self._manifest(batch_id, measure(batch.sparkSession, self._table.path(written)))
        self._publish(written, manifest)
        self._tell(manifest, time.monotonic() - began)

    def _publish(self, written: str, manifest: Manifest) -> None:
        final = batch_folder(manifest.batch_id)
        if manifest.rows:
            self._table.move(written, final)
        else:
            self._table.delete(written)
            self._table.delete(final)
        failpoint("land.data_written")
        self._table.put_text(manifest_file(manifest.batch_id), manifest.encode())
        failpoint("land.manifest_written")

    def _is_landed(self, batch_id: int) -> bool:
        text = self._table.text(manifest_file(batch_id))
        if text is None:
            return False
        landed = Manifest.parse(text)
        if landed.query_id != self._checkpoint.query_id() or landed.end != self._checkpoint.end(batch_id):
            raise OutputError(
                f"batch {batch_id} of {self._table} was landed with other offsets than {self._checkpoint} now has for "
                "it, as after the checkpoint was put back from a copy: nothing was written; land into another output"
            )
        return True

    def _manifest(self, batch_id: int, partitions: tuple[PartitionRows, ...]) -> Manifest:
        return Manifest(
            self._job_id,
            self._checkpoint.query_id() or "",
            batch_id,
            self._checkpoint.start(batch_id),
            self._checkpoint.end(batch_id),
            self._topics,
            partitions,
        )

    def _tell(self, manifest: Manifest, seconds: float) -> None:
        self.batches += 1
        self.rows += manifest.rows
        log.info(
            "batch landed",
            batch=manifest.batch_id,
            rows=manifest.rows,
            rows_per_second=round(manifest.rows / seconds),
            seconds=round(seconds, 2),
            offsets=offsets_text(manifest),
        )


def check_pair(table: Folder, checkpoint: Checkpoint, topics: Mapping[str, str]) -> None:
    """Refuse a table and a checkpoint of which one knows nothing of the other: rows would be missing or be replaced.

    Likewise a topic that was deleted and made again: the checkpoint's offsets mean nothing in it.

    Args:
        table: The table.
        checkpoint: The checkpoint.
        topics: Ids of the topics by name.

    Raises:
        OutputError: They do not belong together; the message says what to do.
    """
    landed = [int(stem) for name in table.names(MANIFESTS) if (stem := name.removesuffix(".json")).isdigit()]
    committed = checkpoint.last_commit()
    if landed:
        last = Manifest.parse(table.text(manifest_file(max(landed))) or "")
        if last.query_id != checkpoint.query_id():
            raise OutputError(
                f"{table} was landed by job {last.job_id!r} with another checkpoint than {checkpoint}: name that "
                "checkpoint, or another output"
            )
        if again := [name for name, topic_id in topics.items() if last.topics.get(name, topic_id) != topic_id]:
            raise OutputError(
                f"topic {', '.join(again)} was deleted and made again since batch {last.batch_id}: name another "
                "output and another checkpoint"
            )
    if committed is not None and committed > max(landed, default=-1):
        raise OutputError(
            f"{checkpoint} says that batches up to {committed} are landed, {table} has none of them from "
            f"{max(landed, default=-1) + 1} on: name the output that belongs to it, or a new checkpoint"
        )


def measure(spark: SparkSession, path: str) -> tuple[PartitionRows, ...]:
    """Count what was written, by reading it back.

    Args:
        spark: Session to read with.
        path: Folder of one batch.
    """
    hashed = f.when(f.col("message_id").isNotNull(), f.xxhash64("message_id"))
    parts = (
        spark.read.schema(COLUMNS)
        .parquet(path)
        .groupBy("topic", "partition")
        .agg(
            f.count("*").alias("rows"),
            f.min("offset").alias("first_offset"),
            f.max("offset").alias("last_offset"),
            f.count("message_id").alias("identified"),
            # Whole hashes would overflow a sum, which Spark refuses.
            f.coalesce(f.sum(f.shiftright(hashed, 32)), f.lit(0)).alias("high"),
            f.coalesce(f.sum(hashed.bitwiseAND(f.lit(0xFFFF_FFFF))), f.lit(0)).alias("low"),
        )
        .orderBy("topic", "partition")
        .collect()
    )
    return tuple(
        PartitionRows(
            part.topic,
            part.partition,
            part.rows,
            part.first_offset,
            part.last_offset,
            part.identified,
            str(Checksum.of_halves(part.high, part.low)),
        )
        for part in parts
    )


def offsets_text(manifest: Manifest) -> str:
    """The offsets that a batch read, for people: `orders/0 0..120, orders/1 5..90`, the second one not included."""
    spans = []
    for topic, ends in sorted(manifest.end.items()):
        starts = manifest.start.get(topic, {})
        moved = {part: (starts.get(part, 0), end) for part, end in ends.items() if starts.get(part, 0) != end}
        spans += [f"{topic}/{part} {start}..{end}" for part, (start, end) in sorted(moved.items(), key=_number)]
    return ", ".join(spans)


def _number(span: tuple[str, tuple[int, int]]) -> int:
    return int(span[0])
