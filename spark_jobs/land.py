"""The job `land`: topics into tables, each record once.

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
from spark_jobs.delta import DeltaSink
from spark_jobs.errors import JobFailedError, LostRecordsError, is_data_loss, reason
from spark_jobs.folder import Folder
from spark_jobs.jvm import JVM_GONE
from spark_jobs.pairing import needed_offsets
from spark_jobs.parsing import parse_schema
from spark_jobs.settings import LandSettings, SinkName
from spark_jobs.sinks import ParquetSink, Sink
from spark_jobs.source import KafkaView, source_options
from spark_jobs.spans import lost_spans

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
        LostRecordsError: Records that were to be landed are gone from Kafka.
        ConfigurationError: A schema of values is none.
        JobFailedError: The job ended on its own.
    """
    output = Folder(spark, settings.output)
    checkpoint = Checkpoint(Folder(spark, settings.checkpoint_path))
    schemas = {topic: parse_schema(spark, topic, text) for topic, text in settings.parse.items()}
    with KafkaView(spark, settings, settings.topic_names()) as kafka:
        kafka.check_topics()
        sink = make_sink(spark, settings, output, checkpoint)
        writer = BatchWriter(settings.job_id, output, checkpoint, sink, kafka.topic_ids, schemas)
        writer.prepare()
        refuse_lost(kafka, output, checkpoint)
        query = start(landed_columns(read(spark, settings), settings.internal_names()), settings, writer)
        log.info("landing", topics=",".join(settings.topic_names()), output=settings.output, query=str(query.id))
        try:
            _watch(query, stop)
        except StreamingQueryException as error:
            if not stop.is_set():
                if writer.gone or is_data_loss(error):
                    refuse_lost(kafka, output, checkpoint)
                    raise LostRecordsError(str(writer.failure or reason(error))) from error
                raise writer.failure or JobFailedError(f"the query ended: {reason(error)}") from error
        except JVM_GONE as error:
            if not stop.is_set():
                raise JobFailedError(
                    "the query ended: Spark's Java process is gone, killed or out of memory"
                ) from error
        finally:
            with suppress(*JVM_GONE):
                query.stop()
    log.info("landed", batches=writer.batches, rows=writer.rows)


def make_sink(spark: SparkSession, settings: LandSettings, output: Folder, checkpoint: Checkpoint) -> Sink:
    """The sink that the settings name."""
    if settings.sink is SinkName.DELTA:
        # A new checkpoint counts batches from 0 again: it must not pass for the old one.
        return DeltaSink(spark, output, lambda: f"{settings.name}-{checkpoint.query_id()}")
    return ParquetSink(spark, output)


def refuse_lost(kafka: KafkaView, output: Folder, checkpoint: Checkpoint) -> None:
    """See that Kafka still has all that is not landed.

    Raises:
        LostRecordsError: Some of it is gone; the message names the offsets.
    """
    if needed := needed_offsets(output, checkpoint):
        beginnings, ends = kafka.offsets()
        if spans := lost_spans(needed, beginnings, ends):
            raise LostRecordsError(
                f"records that were to be landed are gone from Kafka: {spans}. What is there is to be landed into "
                "another output with another checkpoint"
            )


def read(spark: SparkSession, settings: LandSettings) -> DataFrame:
    """The topics' records as a stream, as Spark's Kafka source gives them."""
    reader = spark.readStream.format("kafka").options(**source_options(settings, settings.topic_names()))
    return reader.options(**settings.rate_options()).option("startingOffsets", settings.starting_offsets).load()


def start(rows: DataFrame, settings: LandSettings, writer: BatchWriter) -> StreamingQuery:
    """Start to write a stream.

    Args:
        rows: A stream with the columns of the table of records.
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
