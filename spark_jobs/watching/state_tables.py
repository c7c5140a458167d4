"""The tables of `watch`, and what it must know from one batch to the next.

    <output>/minutes/batch_id=7/part-….parquet      figures by minute, producer group and topic; they add up
    <output>/waiting/batch_id=7/part-….parquet      what waited when batch 7 was made, by producer group and age
    <output>/partitions/batch_id=7/part-….parquet   partitions as they were then
    <output>/_known/batch_id=7/                     events of what is open; of the last two batches
    <output>/_recent/batch_id=7/                    figures of the last minutes; of the last two batches
    <output>/_manifests/7.json                      batch 7 counts

Folders appear by a rename, the manifest last: what a batch wrote that has none is replaced by the next try.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.tables.layout import BATCH_COLUMN, MANIFESTS, WRITING, batch_folder, manifest_file
from spark_jobs.tables.sinks import FILES
from spark_jobs.watching.frames.backlog import WAITING
from spark_jobs.watching.frames.events import EVENTS
from spark_jobs.watching.frames.partitions import PARTITIONS
from spark_jobs.watching.frames.per_minute import MINUTES, merged
from spark_jobs.watching.frames.step import CountedBatch

KNOWN, RECENT = "_known", "_recent"

TABLES = {"minutes": MINUTES, "waiting": WAITING, "partitions": PARTITIONS}
"""Tables, and their columns besides `batch_id`."""

_SNAPSHOTS = {KNOWN: EVENTS, RECENT: MINUTES}
_SNAPSHOTS_KEPT = 2
_BATCH = f"{BATCH_COLUMN.split()[0]}="


class WatchTables:
    """The output of a job.

    Args:
        spark: Session to read and write with.
        output: Its folder.
    """

    def __init__(self, spark: SparkSession, output: Folder) -> None:
        self._spark = spark
        self._output = output
        # A driver that was killed may leave a JVM that writes on for a moment: no two runs share a folder.
        self._run = uuid.uuid4().hex

    def prepare(self, keep: int = 0) -> CountedBatch | None:
        """Remove what killed runs were writing or removing, and batches that are too old.

        Args:
            keep: So many batches stay in the tables; 0: all.

        Returns:
            The last batch that counts, None before the first.
        """
        self._output.delete(WRITING)
        self._output.make(WRITING)
        self._output.make(MANIFESTS)
        numbers = counted_batches(self._output)
        last = numbers[-1] if numbers else None
        if last is not None:
            self._sweep(numbers, last - keep + 1 if keep else numbers[0])
        return None if last is None else CountedBatch.parse(self._output.text(manifest_file(last)) or "")

    def snapshot(self, name: str, step: CountedBatch) -> DataFrame:
        """Return what a batch has left for the next one; nothing before the first."""
        if step.number < 0:
            return self._spark.createDataFrame([], _SNAPSHOTS[name])
        return self._spark.read.schema(_SNAPSHOTS[name]).parquet(self._output.path(batch_folder(name, step.number)))

    def write(self, name: str, number: int, rows: DataFrame) -> DataFrame:
        """Write to a folder of this run; the rows as they are read back."""
        path = self._output.path(f"{self._work(number)}/{name}")
        rows.write.options(**FILES).parquet(path, mode="overwrite")
        return self._spark.read.schema(rows.schema).parquet(path)

    def publish(self, step: CountedBatch, keep: int) -> None:
        """Let a batch count: rename its folders, write its manifest, remove what is too old.

        Args:
            step: The batch; all tables and snapshots of it are written.
            keep: So many batches stay in the tables; 0: all.

        Raises:
            OutputError: Another job has written it meanwhile, or the output cannot be written.
        """
        if self._output.exists(manifest_file(step.number)):
            raise OutputError(f"Another job writes to {self._output}, too. Stop one of them.")
        for name in (*TABLES, *_SNAPSHOTS):
            self._output.move(f"{self._work(step.number)}/{name}", batch_folder(name, step.number))
        self._output.put_text(manifest_file(step.number), step.encode())
        self._output.delete(self._work(step.number))
        self._remove_older(_SNAPSHOTS, step.number - _SNAPSHOTS_KEPT + 1)
        if keep and step.number >= keep:
            self._remove(step.number - keep)

    def _remove(self, number: int) -> None:
        self._output.delete(manifest_file(number))
        for name in TABLES:
            self._output.delete(batch_folder(name, number))

    def _sweep(self, numbers: Iterable[int], first: int) -> None:
        """Remove all before a batch; a killed run may have removed their manifests, and not yet their folders."""
        for number in numbers:
            if number < first:
                self._output.delete(manifest_file(number))
        self._remove_older(TABLES, first)

    def _remove_older(self, tables: Iterable[str], first: int) -> None:
        for table in tables:
            for name in self._output.names(table):
                number = name.removeprefix(_BATCH)
                if number.isdigit() and int(number) < first:
                    self._output.delete(f"{table}/{name}")

    def _work(self, number: int) -> str:
        return f"{WRITING}/{self._run}-{number}"


def counted_batches(output: Folder) -> list[int]:
    """Return the batches that count, ascending."""
    names = (name.removesuffix(".json") for name in output.names(MANIFESTS))
    return sorted(int(name) for name in names if name.isdigit())


def read_watch(spark: SparkSession, path: str, table: str) -> DataFrame:
    """Return the rows of all batches that count, as a frame.

    Args:
        spark: Session to read with.
        path: Output of the job, on any file system that Spark supports.
        table: `minutes`, `waiting` or `partitions`.
    """
    output = Folder(spark, path)
    numbers = counted_batches(output)
    columns = f"{TABLES[table]}, {BATCH_COLUMN}"
    if not numbers:
        return spark.createDataFrame([], columns)
    rows = spark.read.schema(columns).parquet(output.path(table))
    return rows.where(f.col("batch_id").between(numbers[0], numbers[-1]))


def read_minutes(spark: SparkSession, path: str) -> DataFrame:
    """Figures by minute, producer group and topic, each once: what several batches have of one is added up."""
    return merged(read_watch(spark, path, "minutes"))
