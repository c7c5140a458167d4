"""The command `land maintain`: many small files into few, and replaced files deleted."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from pyspark.sql import SparkSession

from outbox._settings.of_jobs import MaintainSettings
from spark_jobs.runtime.errors import OutputError
from spark_jobs.tables.delta_output import Output

log = structlog.get_logger()


def maintain(spark: SparkSession, settings: MaintainSettings, stop: Callable[[], bool]) -> None:
    """Optimize and vacuum the tables of an output; `land` may run meanwhile.

    Args:
        stop: Returns whether the job is asked to stop; it is asked before each table.
    """
    output = Output(spark, settings.output)
    progress = output.progress()
    if progress is None:
        raise OutputError(f"{output} has no table that land has written. Name the output of a job that has landed.")
    for table in output.tables():
        if stop():
            break
        began = time.monotonic()
        replaced, written = output.optimize(table, progress)
        seconds = round(time.monotonic() - began, 2)
        log.info("Table maintained", table=table, replaced=replaced, written=written, seconds=seconds)
