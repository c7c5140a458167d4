"""The job `watch`: figures of a channel by minute and producer group, what waits in it, what hangs, and alerts.

Batches are read with offsets of the job's own rather than by one of Spark's streaming queries: those run no batch while
nothing is written, which is when halves grow old and transactions hang. docs/spark/watch.md gives all reasons.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import structlog
from pyspark.sql import SparkSession

from outbox._failpoints import failpoint
from outbox.protocol.names import Place
from spark_jobs.runtime.errors import JobFailedError, LostRecordsError, OutputError, SourceError, is_data_loss, reason
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE
from spark_jobs.runtime.kafka_offsets import Topic
from spark_jobs.runtime.source import refuse_missing
from spark_jobs.runtime.spans import Span, by_topic, lost_spans
from spark_jobs.tables.pairing import check_ids
from spark_jobs.watching.frames.channel_status import ChannelStatus
from spark_jobs.watching.frames.partitions import held, standing
from spark_jobs.watching.frames.read_plan import advanced, plan
from spark_jobs.watching.frames.step import CountedBatch
from spark_jobs.watching.metrics import write_metrics
from spark_jobs.watching.micro_batch import Batch, Ends
from spark_jobs.watching.settings import WatchSettings
from spark_jobs.watching.state_tables import WatchTables
from spark_jobs.watching.topics import WatchedTopics, places_of

log = structlog.get_logger()


def watch(spark: SparkSession, settings: WatchSettings, stop: threading.Event) -> None:
    """Watch a channel until asked to stop, or until what was there at the start is counted.

    Args:
        spark: Session with Spark's Kafka source.
        settings: What to watch.
        stop: Set when the job is asked to stop.

    Raises:
        OutputError: The output cannot be used, or is of other topics.
        SourceError: Kafka does not answer at the start, or a topic is missing.
        LostRecordsError: Records that were to be counted are gone from Kafka, or a topic was recreated.
        ConfigurationError: The file for Prometheus cannot be written.
        JobFailedError: The job ended on its own; started again it goes on where it stopped.
    """
    with WatchedTopics(spark, settings) as kafka:
        job = Watch(spark, settings, kafka)
        job.prepare()
        log.info("Watching", channel=settings.channel, topics=",".join(settings.real_topics()), output=settings.output)
        goal = job.goal() if settings.available_now else None
        while not stop.is_set():
            began, behind = time.monotonic(), 0
            with _told(stop):
                behind = job.step(goal)
            if goal is not None and not behind:
                break
            if goal is None and not behind:
                stop.wait(max(settings.trigger_seconds - (time.monotonic() - began), 0))
    log.info("Watched", batches=job.batches)


class Goal(NamedTuple):
    """Where a job ends that watches what is there.

    Args:
        at_ms: When it was asked for, ms since 1970.
        offsets: Where a read_committed reader ended then.
    """

    at_ms: int
    offsets: Mapping[Place, int]


class Watch:
    """One job on one output.

    Args:
        spark: Session with Spark's Kafka source.
        settings: What to watch.
        kafka: What is asked of Kafka.

    Attributes:
        batches: Batches made.
    """

    def __init__(self, spark: SparkSession, settings: WatchSettings, kafka: WatchedTopics) -> None:
        self._spark = spark
        self._settings = settings
        self._kafka = kafka
        self._tables = WatchTables(spark, Folder(spark, settings.output))
        self._step: CountedBatch | None = None
        self.batches = 0

    def prepare(self) -> None:
        """Look at output and topics.

        Raises:
            OutputError: The output cannot be used, or is of other topics.
            SourceError: Kafka does not answer, or a topic is missing.
            LostRecordsError: Records are gone, or a topic is another one.
        """
        refuse_missing(self._settings.topic_names(), self._kafka.topics(self._settings.topic_names()))
        self._step = self._tables.prepare(self._settings.keep_batches)
        if self._step is not None and set(self._step.topics) != set(self._settings.watched_topics()):
            raise OutputError(
                f"{self._settings.output} is of topics {', '.join(sorted(self._step.topics))}. Name those real topics "
                "and that channel, or another output."
            )
        self.topics()

    def topics(self) -> dict[str, Topic]:
        """Return the topics, as they are now.

        Raises:
            LostRecordsError: One is gone, or another one than it was.
        """
        found = self._kafka.topics(self._settings.watched_topics())
        if self._step is not None:
            ids = {name: topic.id for name, topic in found.items()}
            check_ids(self._step.topics, ids, self._step.offsets(), f"since batch {self._step.number}", _elsewhere)
        return found

    def goal(self) -> Goal:
        """Where a read_committed reader ends now."""
        return Goal(_now(), self._kafka.stable(places_of(self.topics())))

    def ends(self, now: int) -> Ends:
        """Where the partitions end now, who holds them up, and where the relay is."""
        topics = self.topics()
        places = places_of(topics)
        ends = self._kafka.ends(places)
        stable = {place: min(offset, ends[place]) for place, offset in self._kafka.stable(places).items()}
        before = {} if self._step is None else self._step.standing
        stands = standing(ends, stable, before, now)
        channel = self._settings.channel_names()
        heads = self._kafka.relay_heads(channel.relay_group, topics[channel.half_topic])
        holders = self._kafka.holders({place: one.offset for place, one in stands.items()})
        return Ends(topics, ends, stable, held(stands, holders), heads)

    def step(self, goal: Goal | None) -> int:
        """Make a batch.

        Args:
            goal: Where to go to at most; None: as far as there is something.

        Returns:
            How many offsets are left to read.
        """
        now = _now()
        ends = self.ends(now)
        before = self._step or self._begin(ends, now)
        if self._step is not None:  # one that begins has asked later than for the ends, and halves may have come since
            self._refuse_lost(self._step, ends)
        until, bound = (now, ends.stable) if goal is None else (goal.at_ms, _within(goal.offsets, ends.stable))
        spans = plan(before.position, bound, self._settings.max_offsets_per_batch)
        position = advanced(before.position, spans)
        behind = sum(max(end - position.get(place, 0), 0) for place, end in bound.items())
        with Batch(self._spark, self._settings, self._tables, before, ends, now) as batch:
            step, look = batch.make(spans, None if behind else until)
            failpoint("watch.written")
            self._tables.publish(step, self._settings.keep_batches)
        failpoint("watch.published")
        self._step = step
        self.batches += 1
        if self._settings.prometheus_file is not None:
            write_metrics(self._settings.prometheus_file, look, step.totals, behind)
        self._tell(step, look, spans)
        return behind

    def _tell(self, step: CountedBatch, look: ChannelStatus, spans: Mapping[Place, Span]) -> None:
        log.info(
            "Batch watched",
            batch=step.number,
            offsets=sum(end - start for start, end in spans.values()),
            waiting=None if look.until_ms is None else sum(one.messages for one in look.waiting),
            hanging=sum(1 for _ in look.hanging()),
            alerts=len(step.firing),
            seconds=round(time.time_ns() / 1e9 - step.at_ms / 1000, 2),
        )

    def _begin(self, ends: Ends, now: int) -> CountedBatch:
        """Where a job begins whose output is empty; as if batch -1 had been there."""
        ids = {name: topic.id for name, topic in ends.topics.items()}
        if self._settings.starting_offsets == "earliest":
            return CountedBatch(-1, now, ids, self._kafka.beginnings(places_of(ends.topics)))
        # The half topic last: of a half that is read all that follows is read, too.
        half = ends.topics[self._settings.channel_names().half_topic]
        return CountedBatch(-1, now, ids, {**ends.stable, **self._kafka.stable(half.places())})

    def _refuse_lost(self, before: CountedBatch, ends: Ends) -> None:
        beginnings = by_topic(self._kafka.beginnings(ends.ends))
        if spans := lost_spans(before.offsets(), beginnings, by_topic(ends.ends)):
            raise LostRecordsError(
                f"Records that were to be counted are gone from Kafka: {spans}. Watch from now on with another output."
            )


def _elsewhere(_: Sequence[str]) -> str:
    """Return for people how a watch goes on: its figures are not worth a repair."""
    return "watch the others with another output"


def _now() -> int:
    return time.time_ns() // 1_000_000


def _within(offsets: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[Place, int]:
    return {place: min(offset, ends[place]) for place, offset in offsets.items()}


@contextmanager
def _told(stop: threading.Event) -> Iterator[None]:
    """Turn what ends a running job into one sentence; a stop by signal may raise the same."""
    try:
        yield
    except (*JAVA_ERRORS, *JVM_GONE, SourceError) as error:
        if stop.is_set():
            return
        if is_data_loss(error):
            raise LostRecordsError(reason(error)) from error
        gone = "Spark's Java process is gone, killed or out of memory"
        raise JobFailedError(f"The watch ended: {gone if isinstance(error, JVM_GONE) else reason(error)}") from error
