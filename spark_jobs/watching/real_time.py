"""The alerts of `watch` that one record alone gives away, in real time: Kafka to Kafka within milliseconds."""

from __future__ import annotations

import threading
from contextlib import suppress

import structlog
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.runtime.errors import JobFailedError, LostRecordsError, is_data_loss, reason
from spark_jobs.runtime.jvm import JVM_GONE
from spark_jobs.runtime.source import refuse_missing, source_options
from spark_jobs.watching.alert_sink import sink_options
from spark_jobs.watching.frames.single_record_alerts import urgent_alerts
from spark_jobs.watching.settings import WatchSettings
from spark_jobs.watching.topics import WatchedTopics

LOOK_SECONDS = 1

SLOTS = {"spark.master": "local[256]"}
"""A query in real time has a task for each Kafka partition, all at once; waiting ones cost no processor."""

log = structlog.get_logger()


def watch_in_real_time(spark: SparkSession, settings: WatchSettings, stop: threading.Event) -> None:
    """Send alerts until asked to stop.

    Args:
        spark: Session with Spark's Kafka source, and with a slot for each partition of the check and discard topics.
        settings: What to watch.
        stop: Set when the job is asked to stop.

    Raises:
        SourceError: Kafka does not answer, or a topic is missing.
        LostRecordsError: Records that were to be read are gone from Kafka.
        JobFailedError: The query ended on its own; started again it goes on where it stopped.
    """
    with WatchedTopics(spark, settings) as kafka:
        refuse_missing(settings.topic_names(), kafka.topics(settings.topic_names()))
    query = start(spark, settings)
    log.info("Watching in real time", channel=settings.channel, alerts_topic=settings.alerts_topic)
    try:
        while not stop.is_set() and not query.awaitTermination(LOOK_SECONDS):
            pass
    except StreamingQueryException as error:
        if not stop.is_set():
            if is_data_loss(error):
                raise LostRecordsError(f"{reason(error)}. Begin with another checkpoint.") from error
            raise JobFailedError(f"The query ended: {reason(error)}") from error
    except JVM_GONE as error:
        if not stop.is_set():
            raise JobFailedError(
                "The query ended: Spark's Java process is gone, killed or out of memory. Start the watch again."
            ) from error
    finally:
        with suppress(*JVM_GONE):
            query.stop()
    log.info("Watched in real time")


def start(spark: SparkSession, settings: WatchSettings) -> StreamingQuery:
    """Start the query.

    Raises:
        JobFailedError: Spark refuses to start it.
    """
    channel = settings.channel_names()
    options = source_options(settings, [channel.check_topic, channel.discard_topic])
    source = spark.readStream.format("kafka").options(**options)
    records = source.option("startingOffsets", settings.starting_offsets).load()
    sink = urgent_alerts(records, channel, settings.checked).writeStream.format("kafka")
    sink = sink.options(**sink_options(settings)).option("checkpointLocation", settings.checkpoint_path)
    interval = f"{round(settings.trigger_seconds * 1000)} milliseconds"
    try:
        named = sink.queryName(settings.name).outputMode("update")
        query: StreamingQuery = named.trigger(realTime=interval).start()  # type: ignore[call-overload]  # PySpark 4.2 has it, its types do not
    except PySparkException as error:
        raise JobFailedError(f"The query does not start: {reason(error)}") from error
    return query
