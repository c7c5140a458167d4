"""Where the rows of batches go: one small protocol, and its form in plain Parquet files.

Spark hands a batch over again if the process died before the batch was committed in the checkpoint. A sink makes that
harmless: rows of one batch and table that are written twice are there once. That a batch is complete is not the sink's
matter but the manifest's, which is written last.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.settings import SinkName
from spark_jobs.tables.layout import PARSED, PARTITIONED_BY, QUARANTINE, RECORDS, WRITING, batch_folder, parsed_table

FILES = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""The manifest marks a batch as complete; no other marker does."""


def tables_of(output: Folder) -> Iterator[str]:
    """Yield the tables that an output can have."""
    yield from (RECORDS, QUARANTINE, *map(parsed_table, output.names(PARSED)))


class Sink(Protocol):
    """Writes the batches of one query; tests/spark/test_sinks.py states what every sink must do.

    Attributes:
        name: What its tables are; one output holds tables of one kind.
    """

    name: ClassVar[SinkName]

    def prepare(self) -> None:
        """Remove what killed runs left, before the first batch."""

    def write(self, table: str, batch_id: int, rows: DataFrame) -> DataFrame:
        """Write a batch's rows of one table, in place of all that an earlier try wrote.

        Args:
            rows: Its rows, which are the same at each try.

        Returns:
            The rows as they are read back from where they were written.
        """

    def publish(self, batch_id: int, tables: Collection[str]) -> None:
        """Put the rows where they stay.

        Args:
            tables: The tables of which it has rows; what else was written for it vanishes.
        """

    def kept(self, table: str, batch_id: int) -> DataFrame | None:
        """Return the rows of a batch without a manifest that are in a table for good; None if there are none."""

    def discard(self, batch_id: int) -> None:
        """Remove all rows of a batch without a manifest."""


class ParquetSink:
    """Directories: rows are written to a folder without readers, and renamed to the batch's name."""

    name: ClassVar = SinkName.PARQUET

    def __init__(self, spark: SparkSession, output: Folder) -> None:
        self._spark = spark
        self._output = output
        # A driver that was killed may leave a JVM that writes on for a moment: no two runs share a folder.
        self._run = uuid.uuid4().hex

    def prepare(self) -> None:
        """Remove what killed runs were writing."""
        self._output.delete(WRITING)
        self._output.make(WRITING)

    def write(self, table: str, batch_id: int, rows: DataFrame) -> DataFrame:
        """Write to a folder of this run."""
        path = self._output.path(self._written(table, batch_id))
        rows.write.options(**FILES).partitionBy(*PARTITIONED_BY).parquet(path, mode="overwrite")
        return self._spark.read.schema(rows.schema).parquet(path)

    def publish(self, batch_id: int, tables: Collection[str]) -> None:
        """Rename the folders. A process that dies between two of them leaves no manifest, and does it all again."""
        for table in tables:
            self._output.move(self._written(table, batch_id), batch_folder(table, batch_id))
        for table in self._tables():
            if table not in tables:
                self._output.delete(batch_folder(table, batch_id))
        self._output.delete(self._work(batch_id))

    def kept(self, _table: str, _batch_id: int) -> DataFrame | None:
        """Return None: what has no manifest is replaced."""
        return None

    def discard(self, batch_id: int) -> None:
        """Remove the folders of the batch."""
        self.publish(batch_id, ())

    def _tables(self) -> Iterator[str]:
        return tables_of(self._output)

    def _work(self, batch_id: int) -> str:
        return f"{WRITING}/{self._run}-{batch_id}"

    def _written(self, table: str, batch_id: int) -> str:
        return f"{self._work(batch_id)}/{table}"
