"""The job `land`: topics into tables, each record once."""

import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

import structlog
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from outbox._settings.of_jobs import LandSettings, names_in
from spark_jobs.columns import landed_columns
from spark_jobs.landing.batch_writer import BatchWriter
from spark_jobs.landing.gaps import accept
from spark_jobs.landing.metrics import Figures
from spark_jobs.runtime.errors import JobFailedError, LostRecordsError, SourceError, is_data_loss, reason
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JVM_GONE
from spark_jobs.runtime.source import KafkaView, source_options
from spark_jobs.runtime.spans import Offsets, behind, gaps_at_beginnings, lost_spans, lost_topics, with_added
from spark_jobs.tables.delta_output import Output
from spark_jobs.tables.pairing import ANOTHER, Pair
from spark_jobs.tables.query_checkpoint import Checkpoint

WATCH_SECONDS = 1

TELL_SECONDS = 10
"""Time between two lines about a batch that goes on, and between two looks at the lag."""

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
        teller = _Teller(spark, settings, kafka, writer, pair)
        teller.write_figures()
        refuse_lost(kafka, pair)
        query = start(landed_columns(read(spark, settings)), settings, writer)
        log.info("Landing", topics=",".join(settings.topic_names()), output=settings.output, query=str(query.id))
        try:
            _watch(query, stop, teller)
            teller.write_figures()
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


class _Teller:
    """Reports what a job does while its batches are landed in another thread: a line of the log, and the figures."""

    def __init__(
        self, spark: SparkSession, settings: LandSettings, kafka: KafkaView, writer: BatchWriter, pair: Pair
    ) -> None:
        self._spark, self._kafka, self._writer, self._pair = spark, kafka, writer, pair
        file = settings.prometheus_file
        self._figures = None if file is None else Figures(file, settings.output, settings.topic_names())

    def tell(self) -> None:
        if (found := self._writer.under_way) is not None and (took := time.monotonic() - found[1]) >= TELL_SECONDS:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [one for stage in tracker.getActiveStageIds() if (one := tracker.getStageInfo(stage)) is not None]
            tasks = f"{sum(one.numCompletedTasks for one in stages)} of {sum(one.numTasks for one in stages)}"
            log.info("Batch goes on", batch=found[0], seconds=round(took), tasks=tasks)
        self.write_figures()

    def write_figures(self) -> None:
        if self._figures is None:
            return
        gaps = () if self._pair.last is None else self._pair.last.gaps
        writer, lags = self._writer, self._lags()
        self._figures.write(gaps, lags, batches=writer.batches, rows=writer.rows, malformed=writer.malformed)

    def _lags(self) -> Mapping[str, int] | None:
        try:
            needed = self._pair.needed()
            beginnings, ends = self._kafka.offsets()
        except SourceError as error:
            log.warning("Lag not read", error=str(error))
            return None
        return {topic: lag(needed.get(topic, {}), beginnings[topic], found) for topic, found in ends.items()}


def lag(needed: Mapping[str, int], beginnings: Mapping[str, int], ends: Mapping[str, int]) -> int:
    """Return how many offsets of a topic are not landed; a partition that is new is landed from its beginning."""
    return sum(max(0, end - needed.get(number, beginnings[number])) for number, end in ends.items())


def _watch(query: StreamingQuery, stop: threading.Event, teller: _Teller) -> None:
    """Wait until the query ends or shall end; a signal is seen between two looks."""
    told = time.monotonic()
    while not stop.is_set():
        if query.awaitTermination(WATCH_SECONDS):
            return
        if time.monotonic() - told >= TELL_SECONDS:
            teller.tell()
            told = time.monotonic()
