"""The job `land`: real topics into a table of Parquet files, each record once.

Also the file to give to `spark-submit`; it takes the options of `outbox land`.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import structlog
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.batches import BatchWriter
from spark_jobs.checkpoint import Checkpoint
from spark_jobs.columns import landed_columns
from spark_jobs.errors import JobFailedError, reason
from spark_jobs.folder import Folder
from spark_jobs.jvm import JVM_GONE
from spark_jobs.settings import LandSettings
from spark_jobs.source import source_options, topic_ids

WATCH_SECONDS = 1

log = structlog.get_logger()


def land(spark: SparkSession, settings: LandSettings, stop: threading.Event) -> None:
    """Land topics until asked to stop, or until what was there at the start is landed.

    Args:
        spark: Session with Spark's Kafka source.
        settings: What to land, and where.
        stop: Set when the job is asked to stop.

    Raises:
        OutputError: Output or checkpoint cannot be used, or do not belong together.
        SourceError: Kafka does not answer, or a topic is missing.
        JobFailedError: The job ended on its own.
    """
    topics = topic_ids(spark, settings, settings.topic_names())
    checkpoint = Checkpoint(Folder(spark, settings.checkpoint_path))
    writer = BatchWriter(settings.job_id, Folder(spark, settings.output), checkpoint, topics)
    writer.prepare()
    query = start(landed_columns(read(spark, settings)), settings, writer)
    log.info("landing", topics=settings.topics, output=settings.output, query=str(query.id))
    try:
        _watch(query, stop)
    except StreamingQueryException as error:
        if not stop.is_set():
            raise writer.failure or JobFailedError(f"the query ended: {reason(error)}") from error
    except JVM_GONE as error:
        if not stop.is_set():
            raise JobFailedError("the query ended: Spark's Java process is gone, killed or out of memory") from error
    finally:
        with suppress(*JVM_GONE):
            query.stop()
    log.info("landed", batches=writer.batches, rows=writer.rows)


def read(spark: SparkSession, settings: LandSettings) -> DataFrame:
    """The topics' records as a stream, as Spark's Kafka source gives them."""
    reader = spark.readStream.format("kafka").options(**source_options(settings, settings.topic_names()))
    if settings.max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", settings.max_offsets_per_trigger)
    return reader.option("startingOffsets", settings.starting_offsets).load()


def start(rows: DataFrame, settings: LandSettings, writer: BatchWriter) -> StreamingQuery:
    """Start to write a stream.

    Args:
        rows: A stream with the columns of the table.
        settings: Trigger, names and checkpoint.
        writer: What writes the batches.

    Raises:
        JobFailedError: Spark refuses to start it.
    """
    sink = rows.writeStream.foreachBatch(writer).queryName(settings.name)
    sink = sink.option("checkpointLocation", settings.checkpoint_path)
    if settings.available_now:
        sink = sink.trigger(availableNow=True)
    else:
        sink = sink.trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds")
    try:
        return sink.start()
    except PySparkException as error:
        raise JobFailedError(f"the query does not start: {reason(error)}") from error


def _watch(query: StreamingQuery, stop: threading.Event) -> None:
    """Wait until the query ends or shall end; a signal is seen between two looks."""
    while not stop.is_set():
        if query.awaitTermination(WATCH_SECONDS):
            return


if __name__ == "__main__":
    from spark_jobs.cli import app

    app()
