"""A Delta table of `land`, whose commits carry the progress of the job as `userMetadata`."""

from collections.abc import Mapping

from pyspark.sql import DataFrame, Row, SparkSession

from spark_jobs.runtime.errors import OutputError, reason
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JAVA_ERRORS
from spark_jobs.tables.progress import Progress, newest

FORMAT = "delta"

_LOG = "_delta_log"
_VERSION_DIGITS = 20
"""Digits that the name of each file of a version begins with, in the log of a Delta table."""

_LOOKS = ("LIMIT 50", "")
"""How much of the history is read: the last commits, then all of them. Commits of others may be between."""

_BY_SQL = {
    "userMetadata": "spark.databricks.delta.commitInfo.userMetadata",
    "txnAppId": "spark.databricks.delta.write.txnAppId",
    "txnVersion": "spark.databricks.delta.write.txnVersion",
}
"""Settings of a session, by the option of a writer of frames that has the same meaning."""


class Table:
    """A table in a folder of an output.

    Args:
        name: Path below the output.
    """

    def __init__(self, spark: SparkSession, output: Folder, name: str) -> None:
        self.spark = spark
        self.output = output
        self._name = name

    def __str__(self) -> str:
        return self.path

    @property
    def path(self) -> str:
        return self.output.path(self._name)

    @property
    def quoted(self) -> str:
        """The table's name in SQL."""
        return f"delta.`{self.path.replace('`', '``')}`"

    @property
    def exists(self) -> bool:
        """Whether the table is there. Delta makes the folder of the log before the table's first version."""
        return self.output.holds(f"{self._name}/{_LOG}", _is_version)

    def read(self) -> DataFrame:
        return self.spark.read.format(FORMAT).load(self.path)

    def progress(self) -> Progress | None:
        """Return how far the last commit of `land` came; None if there is no table, or none of its commits."""
        if self.exists:
            for look in _LOOKS:
                history = self.run(f"DESCRIBE HISTORY {self.quoted} {look}")
                if (found := newest(row.userMetadata for row in history)) is not None:
                    return found
        return None

    def optimize(self, progress: Progress) -> tuple[int, int]:
        """Rewrite small files into few, and delete files that were replaced long ago.

        Readers and streams notice nothing. Its commits carry the progress on, so that it never ages out of the log.

        Returns:
            How many files were replaced, and how many took their place.
        """
        metrics = self.run(f"OPTIMIZE {self.quoted}", {"userMetadata": progress.encode()})[0].metrics
        self.run(f"VACUUM {self.quoted}")
        return metrics.numFilesRemoved, metrics.numFilesAdded

    def run(self, statement: str, options: Mapping[str, str] | None = None) -> list[Row]:
        """Run a statement; its commit has options, as a writer of frames has them."""
        settings = {_BY_SQL[name]: value for name, value in (options or {}).items()}
        try:
            for name, value in settings.items():
                self.spark.conf.set(name, value)
            return self.spark.sql(statement).collect()
        except JAVA_ERRORS as error:
            verb = statement.split(maxsplit=1)[0]
            raise OutputError(f"{verb} of {self} failed: {reason(error)}. Try again.") from error
        finally:
            for name in settings:
                self.spark.conf.unset(name)


def once(progress: Progress) -> dict[str, str]:
    """Return the options of a commit that a batch makes once."""
    # A new checkpoint counts batches from 0 again: it must not pass for the old one.
    batch = {"txnAppId": f"outbox-land-{progress.query_id}", "txnVersion": str(progress.batch_id)}
    return {"userMetadata": progress.encode(), **batch}


def _is_version(name: str) -> bool:
    """Whether a file in the log of a Delta table is of a version: a commit or a checkpoint."""
    number = name.partition(".")[0]
    return len(number) == _VERSION_DIGITS and number.isdigit()
