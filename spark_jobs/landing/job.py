"""The job `land`: topics into tables, each record once."""

import threading
from collections.abc import Collection
from contextlib import suppress

import structlog
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from outbox._settings.of_jobs import LandSettings, names_in
from spark_jobs.columns import landed_columns
from spark_jobs.landing.batch_writer import BatchWriter
from spark_jobs.landing.gaps import accept
from spark_jobs.landing.metrics import write_metrics
from spark_jobs.runtime.errors import JobFailedError, LostRecordsError, is_data_loss, reason
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JVM_GONE
from spark_jobs.runtime.source import KafkaView, source_options
from spark_jobs.runtime.spans import Offsets, behind, gaps_at_beginnings, lost_spans, lost_topics, with_added
from spark_jobs.tables.delta_output import Output
from spark_jobs.tables.pairing import ANOTHER, Pair
from spark_jobs.tables.query_checkpoint import Checkpoint

WATCH_SECONDS = 1

_PROCESS_GONE = "The query ended: Spark's Java process is gone, killed or out of memory. Start the job again."

log = structlog.get_logger()


def land(spark: SparkSession, settings: LandSettings, stop: threading.Event) -> None:
    """Land topics until asked to stop, or until what was there at the start is landed.

    Raises:
        OutputError: Output or checkpoint cannot be used, or do not belong together.
        SourceError: Kafka does not answer, or a topic is missing.
        LostRecordsError: Records that were to be landed are gone from Kafka.
        ConfigurationError: Spark has no Delta, or the file for Prometheus cannot be written.
        JobFailedError: The job ended on its own.
    """
    pair = Pair(Output(spark, settings.output), Checkpoint(Folder(spark, settings.checkpoint)))
    with KafkaView(spark, settings, settings.topic_names()) as kafka:
        kafka.check_topics()
        writer = BatchWriter(pair, kafka.topic_ids, names_in(settings.current))
        pair.catch_up()
        writer.prepare()
        if accepted := names_in(settings.accept_gap):
            writer.finish()
            accept_gaps(kafka, pair, accepted)
        if settings.prometheus_file is not None:
            gaps = () if pair.last is None else pair.last.gaps
            write_metrics(settings.prometheus_file, settings.output, settings.topic_names(), gaps)
        refuse_lost(kafka, pair)
        query = start(landed_columns(read(spark, settings)), settings, writer)
        log.info("Landing", topics=",".join(settings.topic_names()), output=settings.output, query=str(query.id))
        try:
            _watch(query, stop)
        except StreamingQueryException as error:
            if not stop.is_set():
                if writer.gone or is_data_loss(error):
                    refuse_lost(kafka, pair)
                    raise LostRecordsError(str(writer.failure or reason(error))) from error
                raise writer.failure or JobFailedError(f"The query ended: {reason(error)}") from error
        except JVM_GONE as error:
            if not stop.is_set():
                raise JobFailedError(_PROCESS_GONE) from error
        finally:
            with suppress(*JVM_GONE):
                query.stop()
    log.info("Landed", batches=writer.batches, rows=writer.rows)


def accept_gaps(kafka: KafkaView, pair: Pair, topics: Collection[str]) -> None:
    """Record what Kafka removed from the beginning of topics, so that the job goes on behind it.

    Raises:
        LostRecordsError: More than that is gone; nothing was recorded.
    """
    if needed := pair.needed():
        beginnings, ends = kafka.offsets()
        needed = with_added(needed, beginnings)
        gaps = gaps_at_beginnings(needed, beginnings, ends, topics)
        _refuse(behind(needed, gaps), beginnings, ends)
        if gaps:
            accept(pair, gaps, kafka.topic_ids())


def refuse_lost(kafka: KafkaView, pair: Pair) -> None:
    if needed := pair.needed():
        beginnings, ends = kafka.offsets()
        _refuse(with_added(needed, beginnings), beginnings, ends)


def _refuse(needed: Offsets, beginnings: Offsets, ends: Offsets) -> None:
    if spans := lost_spans(needed, beginnings, ends):
        lost = lost_topics(needed, beginnings, ends)
        hopeless = lost_topics(behind(needed, gaps_at_beginnings(needed, beginnings, ends, lost)), beginnings, ends)
        accept = ",".join(topic for topic in lost if topic not in hopeless)
        go_on = f"start the job once with --accept-gap {accept}, or {ANOTHER}" if accept else ANOTHER
        raise LostRecordsError(
            f"Records that were to be landed are gone from Kafka: {spans}. To go on without them, {go_on}."
        )


def read(spark: SparkSession, settings: LandSettings) -> DataFrame:
    """Return the topics' records as a stream, as Spark's Kafka source gives them."""
    reader = spark.readStream.format("kafka").options(**source_options(settings, settings.topic_names()))
    return reader.options(**settings.rate_options()).option("startingOffsets", "earliest").load()


def start(rows: DataFrame, settings: LandSettings, writer: BatchWriter) -> StreamingQuery:
    """Start to write a stream."""
    sink = rows.writeStream.foreachBatch(writer).queryName(settings.name)
    sink = sink.option("checkpointLocation", settings.checkpoint)
    if settings.available_now:
        sink = sink.trigger(availableNow=True)
    else:
        sink = sink.trigger(processingTime=f"{round(settings.trigger_seconds * 1000)} milliseconds")
    try:
        return sink.start()
    except PySparkException as error:
        raise JobFailedError(f"The query does not start: {reason(error)}") from error


def _watch(query: StreamingQuery, stop: threading.Event) -> None:
    """Wait until the query ends or shall end; a signal is seen between two looks."""
    while not stop.is_set():
        if query.awaitTermination(WATCH_SECONDS):
            return
