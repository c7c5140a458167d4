"""The stop of a job by a signal, which may end Spark's Java process as well."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from outbox._service.process import stop_on_signals
from spark_jobs.runtime.errors import JobFailedError, OutputError, SourceError
from spark_jobs.runtime.jvm import JVM_GONE, is_stopped

log = structlog.get_logger()


@contextmanager
def asked_to_stop(spark: SparkSession) -> Iterator[threading.Event]:
    """Yield an event that is set when the process is asked to stop; to be used after the start of Spark.

    A service manager sends SIGTERM to all processes of a job. Spark's Java process then ends by itself. If this process
    was asked to stop as well, the block ends without an error. Spark commits no batch that is not complete, so the next
    start does it again.

    Args:
        spark: Session of the job. PySpark sets a handler for Ctrl-C when it starts it.
    """
    stop = stop_on_signals()
    try:
        yield stop
    except (Py4JError, PySparkException, ConnectionError, JobFailedError, OutputError, SourceError) as error:
        if not stop.is_set() or not (isinstance(error, JVM_GONE) or is_stopped(spark)):
            raise
        log.info("Stopped together with Spark's Java process")
