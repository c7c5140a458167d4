"""The few places where a job reaches through PySpark into the JVM: file systems and Kafka's admin client.

Spark Connect has no such door, so the jobs need classic Spark, as `spark-submit` and `outbox` start it.
"""

from typing import Any

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]  # py4j has no types
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["JAVA_ERRORS", "JVM_GONE", "JavaPackage", "hadoop_configuration", "is_stopped", "java_exception", "jvm"]

JAVA_ERRORS = (Py4JJavaError, PySparkException)
"""What a call into the JVM raises: PySpark turns some of its errors into its own."""

JVM_GONE = (Py4JNetworkError, ConnectionError)


def jvm(spark: SparkSession) -> Any:
    """Return the JVM's packages and classes by name."""
    return spark._jvm  # noqa: SLF001 - PySpark has no public name for it


def hadoop_configuration(spark: SparkSession) -> Any:
    """Return the configuration of file systems that Spark itself uses: credentials and the default file system."""
    return spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - as above


def is_stopped(spark: SparkSession) -> bool:
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())  # noqa: SLF001 - as above
    except (Py4JError, ConnectionError):
        return True


def java_exception(error: BaseException) -> Any:
    """Return the JVM's own exception behind an error; None if there is none."""
    return getattr(error, "java_exception", None) or getattr(error, "_origin", None)
