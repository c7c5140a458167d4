"""The Delta tables of `land`, and what Spark needs for them.

    <output>/records/            every record, partitioned by topic and day; its commits carry the progress of the job
    <output>/current/<topic>/    the newest record of each key, see `current_state`

A batch is one Delta transaction of the records, which carries the job's name and the batch's number. Delta passes over
a transaction whose name it has with the same or a higher number, so the rows of a batch are there once.
"""

import time
from collections.abc import Iterable, Mapping

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from outbox._settings.of_jobs import MaintainSettings
from outbox.errors import ConfigurationError
from spark_jobs.columns import DAY_COLUMN, OUTBOX_COLUMNS, PROBLEM_COLUMN, RAW_COLUMNS
from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JavaPackage, jvm
from spark_jobs.runtime.session import DELTA_SETTINGS, no_rows
from spark_jobs.tables.current_state import CURRENT, CurrentState
from spark_jobs.tables.delta_table import FORMAT, Table, once
from spark_jobs.tables.progress import Progress

log = structlog.get_logger()


def maintain(spark: SparkSession, settings: MaintainSettings) -> None:
    """Optimize and vacuum the table of an output; `land` may run meanwhile."""
    output = Output(spark, settings.output)
    progress = output.landed()
    for table in (output, *output.states(output.output.names(CURRENT))):
        own = table.progress() or progress
        began = time.monotonic()
        replaced, written = table.optimize(own)
        seconds = round(time.monotonic() - began, 2)
        log.info("Table maintained", table=str(table), replaced=replaced, written=written, seconds=seconds)


RECORDS = "records"
PARTITIONED_BY = ("topic", "day")
COLUMNS = f"{RAW_COLUMNS}, {OUTBOX_COLUMNS}, {PROBLEM_COLUMN}, {DAY_COLUMN}"
"""What a batch has; the table has the number of the batch before it."""


class Output(Table):
    """The table of records of one output."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        _require_delta(spark)
        super().__init__(spark, Folder(spark, path), RECORDS)

    def __str__(self) -> str:
        return str(self.output)

    def landed(self) -> Progress:
        """Return how far the table came; an output in which nothing was landed is refused."""
        if (progress := self.progress()) is None:
            raise OutputError(f"{self} has no table that land has written. Name the output of a job that has landed.")
        return progress

    def prepare(self) -> None:
        """Make the folder, so that a path that cannot be written is named before anything starts."""
        self.output.make("")

    def states(self, topics: Iterable[str]) -> list[CurrentState]:
        """Return the tables of the current state of topics; they may be missing."""
        return [CurrentState(self, topic) for topic in topics]

    def create(self, progress: Progress) -> None:
        """Create the table of records, without rows; of two jobs that do so at once, one fails."""
        rows = self._numbered(self._nothing(), progress.batch_id)
        self._save(rows, "errorifexists", {"userMetadata": progress.encode()})

    def commit(self, progress: Progress, rows: DataFrame | None = None) -> None:
        """Append a batch, unless that was done before.

        Args:
            rows: None: a batch without rows.
        """
        numbered = self._numbered(self._nothing() if rows is None else rows, progress.batch_id)
        self._save(numbered, "append", once(progress))

    def count(self, batch_id: int) -> tuple[int, int]:
        """Return how many records a batch has, and how many of them are malformed."""
        counts = (f.count("*").alias("rows"), f.count("problem").alias("problems"))
        found = self.read().where(f.col("batch_id") == batch_id).agg(*counts).collect()[0]
        return found.rows, found.problems

    def _nothing(self) -> DataFrame:
        return no_rows(self.spark, COLUMNS)

    @staticmethod
    def _numbered(rows: DataFrame, batch_id: int) -> DataFrame:
        # The first column: Delta keeps statistics of the first 32, and the look at a batch is to skip older files.
        return rows.select(f.lit(batch_id).cast("bigint").alias("batch_id"), "*")

    def _save(self, rows: DataFrame, mode: str, options: Mapping[str, str]) -> None:
        writer = rows.write.format(FORMAT).partitionBy(*PARTITIONED_BY).options(**options)
        writer.mode(mode).save(self.path)


def _require_delta(spark: SparkSession) -> None:
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
