"""The session of a notebook or of a program of one's own."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_jobs.runtime.session import DELTA_LOCK, SPARK_LOCK, open_session
from spark_jobs.sink import OutboxSink


def session(name: str = "outbox", settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark on this machine, or return the session of spark-submit, with all that the pages of Spark need.

    That is Kafka's source and Delta, whose jars are fetched, and the format `outbox`.

    Args:
        settings: More settings (`spark.…`), over those of a local session.

    Raises:
        ConfigurationError: There is no Java, jars cannot be fetched, or PySpark has another version than they have.
    """
    made = open_session(name, settings or {}, (SPARK_LOCK, DELTA_LOCK))
    made.dataSource.register(OutboxSink)
    return made
