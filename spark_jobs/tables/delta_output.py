"""The Delta table of `land`, and what Spark needs for it.

    <output>/records/    every record, partitioned by topic and day; its commits carry the progress of the job

A batch is one Delta transaction of the records, which carries the job's name and the batch's number. Delta passes over
a transaction whose name it has with the same or a higher number, so the rows of a batch are there once.
"""

import time

import structlog
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from outbox._settings.of_jobs import MaintainSettings
from outbox.errors import ConfigurationError
from spark_jobs.columns import DAY_COLUMN, OUTBOX_COLUMNS, PROBLEM_COLUMN, RAW_COLUMNS
from spark_jobs.runtime.errors import OutputError, reason
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JAVA_ERRORS, JavaPackage, jvm
from spark_jobs.runtime.session import DELTA_SETTINGS
from spark_jobs.tables.progress import Progress, newest

log = structlog.get_logger()


def maintain(spark: SparkSession, settings: MaintainSettings) -> None:
    """Optimize and vacuum the table of an output; `land` may run meanwhile."""
    output = Output(spark, settings.output)
    progress = output.progress()
    if progress is None:
        raise OutputError(f"{output} has no table that land has written. Name the output of a job that has landed.")
    began = time.monotonic()
    replaced, written = output.optimize(progress)
    log.info("Table maintained", replaced=replaced, written=written, seconds=round(time.monotonic() - began, 2))


FORMAT = "delta"
RECORDS = "records"
PARTITIONED_BY = ("topic", "day")
COLUMNS = f"{RAW_COLUMNS}, {OUTBOX_COLUMNS}, {PROBLEM_COLUMN}, {DAY_COLUMN}"
"""What a batch has; the table has the number of the batch before it."""

_LOG = "_delta_log"
_VERSION_DIGITS = 20
"""Digits that the name of each file of a version begins with, in the log of a Delta table."""

_LOOKS = ("LIMIT 50", "")
"""How much of the history is read: the last commits, then all of them. Commits of others may be between."""

_COMMITTED_BY_SQL = "spark.databricks.delta.commitInfo.userMetadata"


class Output:
    """The table of one output."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        _require_delta(spark)
        self._spark = spark
        self._folder = Folder(spark, path)

    def __str__(self) -> str:
        return str(self._folder)

    def prepare(self) -> None:
        """Make the folder, so that a path that cannot be written is named before anything starts."""
        self._folder.make("")

    @property
    def exists(self) -> bool:
        """Whether the table is there. Delta makes the folder of the log before the table's first version."""
        return self._folder.holds(f"{RECORDS}/{_LOG}", _is_version)

    def read(self) -> DataFrame:
        return self._spark.read.format(FORMAT).load(self._folder.path(RECORDS))

    def progress(self) -> Progress | None:
        """Return how far the last commit of `land` came; None if the records are no table, or none of its commits."""
        if self.exists:
            for look in _LOOKS:
                history = self._run(f"DESCRIBE HISTORY {self._quoted()} {look}")
                if (found := newest(row.userMetadata for row in history)) is not None:
                    return found
        return None

    def create(self, progress: Progress) -> None:
        """Create the table of records, without rows; of two jobs that do so at once, one fails."""
        rows = self._numbered(self._nothing(), progress.batch_id)
        self._save(rows, "errorifexists", userMetadata=progress.encode())

    def commit(self, progress: Progress, rows: DataFrame | None = None) -> None:
        """Append a batch, unless that was done before.

        Args:
            rows: None: a batch without rows.
        """
        numbered = self._numbered(self._nothing() if rows is None else rows, progress.batch_id)
        self._save(numbered, "append", userMetadata=progress.encode(), **_once(progress))

    def count(self, batch_id: int) -> tuple[int, int]:
        """Return how many records a batch has, and how many of them are malformed."""
        counts = (f.count("*").alias("rows"), f.count("problem").alias("problems"))
        found = self.read().where(f.col("batch_id") == batch_id).agg(*counts).collect()[0]
        return found.rows, found.problems

    def optimize(self, progress: Progress) -> tuple[int, int]:
        """Rewrite small files into few, and delete files that were replaced long ago.

        Readers and streams notice nothing. Its commits carry the progress on, so that it never ages out of the log.

        Returns:
            How many files were replaced, and how many took their place.
        """
        self._spark.conf.set(_COMMITTED_BY_SQL, progress.encode())
        metrics = self._run(f"OPTIMIZE {self._quoted()}")[0].metrics
        self._run(f"VACUUM {self._quoted()}")
        return metrics.numFilesRemoved, metrics.numFilesAdded

    def _nothing(self) -> DataFrame:
        return self._spark.createDataFrame([], COLUMNS)

    @staticmethod
    def _numbered(rows: DataFrame, batch_id: int) -> DataFrame:
        # The first column: Delta keeps statistics of the first 32, and the look at a batch is to skip older files.
        return rows.select(f.lit(batch_id).cast("bigint").alias("batch_id"), "*")

    def _save(self, rows: DataFrame, mode: str, **options: str) -> None:
        writer = rows.write.format(FORMAT).partitionBy(*PARTITIONED_BY).options(**options)
        writer.mode(mode).save(self._folder.path(RECORDS))

    def _quoted(self) -> str:
        return f"delta.`{self._folder.path(RECORDS).replace('`', '``')}`"

    def _run(self, statement: str) -> list[Row]:
        try:
            return self._spark.sql(statement).collect()
        except JAVA_ERRORS as error:
            verb = statement.partition(" delta.")[0]
            raise OutputError(f"{verb} of {self} failed: {reason(error)}. Try again.") from error


def _once(progress: Progress) -> dict[str, str]:
    # A new checkpoint counts batches from 0 again: it must not pass for the old one.
    return {"txnAppId": f"outbox-land-{progress.query_id}", "txnVersion": str(progress.batch_id)}


def _is_version(name: str) -> bool:
    """Whether a file in the log of a Delta table is of a version: a commit or a checkpoint."""
    number = name.partition(".")[0]
    return len(number) == _VERSION_DIGITS and number.isdigit()


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
