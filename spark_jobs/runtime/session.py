"""The Spark session, with its logs and its stop: a local one with everything set, or that which `spark-submit` made."""

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from outbox._jars.fetch import fetch
from outbox._jars.java import SetupError, find_java, spark_java_home
from outbox._jars.lock_file import read_lock
from outbox._service.logs import configure_logs
from outbox._service.process import stop_on_signals
from outbox._settings.of_jobs import SparkSettings
from outbox.errors import ConfigurationError
from spark_jobs.runtime.errors import JobFailedError, OutputError, SourceError
from spark_jobs.runtime.jvm import JVM_GONE, is_stopped

log = structlog.get_logger()

DELTA_LOCK = Path(__file__).with_name("delta.lock")

DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings that a session with Delta tables must start with."""

DELTA_DEFAULTS = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "100",
}
"""Settings that every session gets unless it was started with others.

By default Delta reads a table's log with 50 tasks, several times for each batch, which takes most of a small batch, and
`VACUUM` lists folders with 10,000.
"""

SPARK_LOCK = Path(__file__).with_name("spark.lock")

_LOG4J = Path(__file__).with_name("log4j2.xml")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_CONNECTOR = "spark-sql-kafka-0-10_2.13"

LOCAL = {
    "spark.master": "local[*]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Its default, which Spark 4.2 looks up in the environment for each value of a struct or array, unless it is set:
    # a tenth of the time that headers of halves take.
    "spark.sql.types.framework.enabled": "false",
}
"""Settings of a local session; every one can be set otherwise."""

RESULTS = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default is a form that only Spark and Hive read well.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows of several topics and days stay in order and need no sort on their way into their files.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.redaction.options.regex": "(?i)url|jaas|password|secret|token",
}
"""Settings that results depend on; set in every session, wherever it comes from."""


@contextmanager
def spark_session(name: str, spark: Mapping[str, str], locks: Sequence[Path] = (SPARK_LOCK,)) -> Iterator[SparkSession]:
    """Start a session for one job, and stop it at the end of the block.

    Args:
        spark: More settings (`spark.…`), over the defaults.
        locks: The jars that the job needs, if it is to bring them itself.
    """
    session = open_session(name, spark, locks)
    try:
        yield session
    finally:
        with suppress(*JVM_GONE):
            session.stop()


def open_session(name: str, spark: Mapping[str, str], locks: Sequence[Path]) -> SparkSession:
    """Return a session as `spark_session` has it, which the caller stops."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # of `spark-submit`: its place and jars are set there
        return _with_results(SparkSession.builder.appName(name).getOrCreate())
    if DELTA_LOCK in locks:
        spark = {**DELTA_SETTINGS, **spark}
    return local_session(name, [] if "spark.jars" in spark else _locked_jars(locks), spark)


def local_session(name: str, jars: Sequence[Path], spark: Mapping[str, str]) -> SparkSession:
    """Return a session in this process and a JVM of its own, which ends when this process does, however it ends.

    Args:
        jars: Jars besides Spark's own.
        spark: More settings (`spark.…`), over the defaults.
    """
    settings = {**LOCAL, "spark.app.name": name, **spark}
    settings[_JAVA_OPTIONS] = f'"-Dlog4j2.configurationFile={_LOG4J}" {spark.get(_JAVA_OPTIONS, "")}'.strip()
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _environment(JAVA_HOME=str(spark_java_home(find_java())), PYSPARK_PYTHON=sys.executable):
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            raise SetupError(f"Spark does not start: {error}. Java's output is above.") from error
    return _with_results(session)


def _locked_jars(locks: Sequence[Path]) -> list[Path]:
    fits = next(root.version for root in read_lock(SPARK_LOCK).roots if root.artifact == _CONNECTOR)
    if pyspark.__version__.split(".")[:2] != fits.split(".")[:2]:
        raise ConfigurationError(
            f"PySpark {pyspark.__version__} needs jars of its own version, and those that come with this job are "
            f"of {fits}. Run pip install 'pyspark=={fits}', or name jars in the setting spark (spark.jars)."
        )
    return [jar for lock in locks for jar in fetch(lock)]


def _with_results(session: SparkSession) -> SparkSession:
    # The gateway logs every call that comes from the JVM.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for key, value in RESULTS.items():
        session.conf.set(key, value)
    for key, value in DELTA_DEFAULTS.items():
        if session.conf.get(key, None) is None:
            session.conf.set(key, value)
    return session


def no_rows(session: SparkSession, columns: str) -> DataFrame:
    """Return a frame without rows; one that is made of an empty list starts Python on the executors."""
    return session.range(0).select(f.from_json(f.lit(""), columns).alias("row")).select("row.*")


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Variables for the JVM that is started inside; this process keeps its own."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def configure_job_logs(settings: SparkSettings) -> None:
    """Configure the logs. Py4J logs only warnings: else each call into Java."""
    configure_logs(settings.log_level, settings.log_format)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Keep Py4J's tracebacks of failed calls out, which it logs past its own logger; the calls raise the errors."""
    return record.module != "java_gateway"


@contextmanager
def asked_to_stop(spark: SparkSession) -> Iterator[threading.Event]:
    """Yield an event that is set when the process is asked to stop; to be used after the start of Spark.

    A service manager sends SIGTERM to all processes of a job. Spark's Java process then ends by itself. If this process
    was asked to stop as well, the block ends without an error. Spark commits no batch that is not complete, so the next
    start does it again.
    """
    stop = stop_on_signals()
    try:
        yield stop
    except (Py4JError, PySparkException, ConnectionError, JobFailedError, OutputError, SourceError) as error:
        if not stop.is_set() or not (isinstance(error, JVM_GONE) or is_stopped(spark)):
            raise
        log.info("Stopped together with Spark's Java process")
