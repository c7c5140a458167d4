"""The sink of Delta tables, and what Spark needs for them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import date
from typing import ClassVar

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from outbox.errors import ConfigurationError
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JavaPackage, jvm
from spark_jobs.runtime.session import DELTA_SETTINGS
from spark_jobs.runtime.settings import SinkName
from spark_jobs.tables.layout import PARTITIONED_BY
from spark_jobs.tables.sinks import tables_of

log = structlog.get_logger()

FORMAT = "delta"
LOG = "_delta_log"

_VERSION_DIGITS = 20
"""Digits that the name of each file of a version begins with, in the log of a Delta table."""


def is_delta_table(output: Folder, table: str) -> bool:
    """Whether an output has this Delta table. Delta makes the folder of the log before the table's first version."""
    return output.holds(f"{table}/{LOG}", is_version)


def is_version(name: str) -> bool:
    """Whether a file in the log of a Delta table is of a version: a commit or a checkpoint."""
    number = name.partition(".")[0]
    return len(number) == _VERSION_DIGITS and number.isdigit()


def require_delta(spark: SparkSession) -> None:
    """Check that a session can use Delta tables."""
    has_jars = not isinstance(jvm(spark).io.delta.tables.DeltaTable, JavaPackage)
    lacking = {name: value for name, value in DELTA_SETTINGS.items() if value not in (spark.conf.get(name, None) or "")}
    if has_jars and not lacking:
        return
    settings = " ".join(f"--conf {name}={value}" for name, value in DELTA_SETTINGS.items())
    raise ConfigurationError(
        f"Spark has no Delta, or not the settings for it. Start it with spark-submit "
        f'--jars "$(outbox land jars)" {settings}'
    )


def optimize(spark: SparkSession, path: str, before: date, file_bytes: int) -> tuple[int, int]:
    """Rewrite the small files of a Delta table into few; its readers and streams notice nothing.

    Args:
        path: The table, partitioned by `day`.
        before: Days before this one.

    Returns:
        How many files were replaced, and how many took their place. Delta's VACUUM deletes replaced files.
    """
    require_delta(spark)
    for name in ("minFileSize", "maxFileSize"):
        spark.conf.set(f"spark.databricks.delta.optimize.{name}", str(file_bytes))
    quoted = path.replace("`", "``")
    metrics = spark.sql(f"OPTIMIZE delta.`{quoted}` WHERE day < DATE'{before}'").collect()[0].metrics
    return metrics.numFilesRemoved, metrics.numFilesAdded


class DeltaSink:
    """Delta tables: each write is one Delta transaction that carries the writer's name and the batch's number.

    Delta passes over a transaction whose name it has with the same or a higher number. So a table's rows of a batch
    are there once, and are visible from their own commit on, which may be a moment before the manifest.

    Args:
        spark: Session with `DELTA_SETTINGS` and Delta's jars.
        application: Gives the writer's name. It must differ when batches are counted from 0 again.
    """

    name: ClassVar = SinkName.DELTA

    def __init__(self, spark: SparkSession, output: Folder, application: Callable[[], str]) -> None:
        require_delta(spark)
        self._spark = spark
        self._output = output
        self._application = application

    def prepare(self) -> None:
        """Do nothing: what a killed run left is no part of a Delta table."""

    def write(self, table: str, batch_id: int, rows: DataFrame) -> DataFrame:
        """Commit to the Delta table, unless that was done before."""
        path = self._output.path(table)
        options = {"txnAppId": self._application(), "txnVersion": str(batch_id), "mergeSchema": "true"}
        # The first column: Delta keeps statistics of the first 32, and the look at this batch is to skip older files.
        numbered = rows.select(f.lit(batch_id).cast("bigint").alias("batch_id"), "*")
        numbered.write.format(FORMAT).partitionBy(*PARTITIONED_BY).options(**options).mode("append").save(path)
        return self._rows(table, batch_id)

    def publish(self, batch_id: int, tables: Collection[str]) -> None:
        """Do nothing: what was written is there."""

    def kept(self, table: str, batch_id: int) -> DataFrame | None:
        """Return the rows of the batch's Delta transaction, if a killed run has committed it."""
        if not is_delta_table(self._output, table):
            return None
        rows = self._rows(table, batch_id)
        return None if rows.isEmpty() else rows

    def discard(self, batch_id: int) -> None:
        """Delete the rows of the batch, by a Delta transaction for each table that has some."""
        for table in tables_of(self._output):
            if self.kept(table, batch_id) is not None:
                quoted = self._output.path(table).replace("`", "``")
                self._spark.sql(f"DELETE FROM delta.`{quoted}` WHERE batch_id = {batch_id}").collect()  # noqa: S608
                log.warning("Rows of an unfinished batch deleted", table=table, batch=batch_id)

    def _rows(self, table: str, batch_id: int) -> DataFrame:
        rows = self._spark.read.format(FORMAT).load(self._output.path(table))
        return rows.where(f.col("batch_id") == batch_id).drop("batch_id")
