"""One batch of `watch`: read, put together, write, send."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from outbox.protocol.names import Place
from spark_jobs.runtime.jvm import JVM_GONE
from spark_jobs.runtime.kafka_offsets import Topic
from spark_jobs.runtime.spans import Span
from spark_jobs.watching.alert_sink import send_alerts
from spark_jobs.watching.batch_source import read_events
from spark_jobs.watching.frames.alerts import alerts, news
from spark_jobs.watching.frames.backlog import oldest_unread, waiting, waiting_rows
from spark_jobs.watching.frames.channel_status import ChannelStatus, recent_figures
from spark_jobs.watching.frames.events import HALF
from spark_jobs.watching.frames.messages import Read, kept, messages, together
from spark_jobs.watching.frames.partitions import OpenTransaction, Partition, partition_rows
from spark_jobs.watching.frames.per_minute import merged, minutes, totals_of
from spark_jobs.watching.frames.read_plan import advanced
from spark_jobs.watching.frames.step import CountedBatch, added
from spark_jobs.watching.settings import WatchSettings
from spark_jobs.watching.state_tables import KNOWN, RECENT, TABLES, WatchTables


@dataclass(frozen=True, slots=True)
class Ends:
    """Topics as they are when a batch is planned.

    Args:
        topics: The topics by name.
        ends: High watermarks.
        stable: Last stable offsets.
        standing: Open transactions that hold readers back.
        heads: First offset that the relay has not read, by half partition.
    """

    topics: Mapping[str, Topic]
    ends: Mapping[Place, int]
    stable: Mapping[Place, int]
    standing: Mapping[Place, OpenTransaction]
    heads: Mapping[int, int]


class _Counted(NamedTuple):
    events: DataFrame
    known: DataFrame
    recent: DataFrame
    read: Read
    totals: Mapping[str, Mapping[str, int]]


class Batch:
    """Makes one batch; a context manager, at whose end what was kept in memory is let go.

    Args:
        spark: Session with Spark's Kafka source.
        settings: What to watch.
        tables: Where everything goes.
        before: The batch before.
        ends: The topics now.
        now: The time, ms since 1970.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: WatchSettings,
        tables: WatchTables,
        before: CountedBatch,
        ends: Ends,
        now: int,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._before = before
        self._ends = ends
        self._now = now
        self._half = ends.topics[settings.channel_names().half_topic]
        self._persisted: list[DataFrame] = []

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of what was kept."""
        with suppress(*JVM_GONE):
            for frame in self._persisted:
                frame.unpersist()

    def make(self, spans: Mapping[Place, Span], until: int | None) -> tuple[CountedBatch, ChannelStatus]:
        """Count what is new, look at what waits, send alerts; all tables are written and not published yet.

        Args:
            spans: What is to be read.
            until: With them all that was written by then is read, ms since 1970; None: more is left.

        Returns:
            What is to be published, and what was found.
        """
        counted = self._count(spans, until)
        look = self._look(counted)
        limits = self._settings.thresholds()
        fresh = news(alerts(look, limits), self._before.firing, self._settings.channel, look)
        send_alerts(self._spark, self._settings, fresh.records)
        return (
            CountedBatch(
                self._before.number + 1,
                self._now,
                self._before.topics,
                advanced(self._before.position, spans),
                counted.read.newest_ms,
                self._ends.standing,
                fresh.firing,
                counted.totals,
            ),
            look,
        )

    def _count(self, spans: Mapping[Place, Span], until: int | None) -> _Counted:
        fresh = self._kept(read_events(self._spark, self._settings, self._half, spans))
        events = together(self._tables.snapshot(KNOWN, self._before), fresh)
        read = self._read(fresh, spans, until)
        known = self._kept(messages(events))
        rows = self._write("minutes", minutes(events, known, read))
        self._write(KNOWN, kept(events, known, read))
        since = f.timestamp_millis(f.lit(self._now - self._settings.recent_ms).cast("bigint"))
        so_far = self._tables.snapshot(RECENT, self._before).unionByName(rows)
        recent = self._write(RECENT, merged(so_far.where(f.col("minute") >= since)))
        return _Counted(events, known, recent, read, added(self._before.totals, totals_of(rows)))

    def _read(self, fresh: DataFrame, spans: Mapping[Place, Span], until: int | None) -> Read:
        newest = fresh.where(f.col("side") == HALF).agg(f.unix_millis(f.max("time")).alias("ms")).collect()[0].ms or 0
        position = advanced(self._before.position, spans)
        half_ends = {place[1]: position.get(place, 0) for place in self._half.places()}
        written = {place[1]: self._ends.ends[place] for place in self._half.places()}
        newest_ms = max(newest, self._before.newest_ms)
        topics = self._settings.real_topics()
        return Read(half_ends, written, newest_ms, until, self._settings.forget_ms, topics, self._ends.heads)

    def _look(self, counted: _Counted) -> ChannelStatus:
        found = waiting(counted.known, counted.read)
        oldest = oldest_unread(counted.events, counted.read)
        partitions = [self._with_relay(self._partition(place), oldest) for place in self._ends.ends]
        self._write_rows("waiting", waiting_rows(found, self._now))
        self._write_rows("partitions", partition_rows(partitions, self._now))
        return ChannelStatus(self._now, found, recent_figures(counted.recent), partitions, counted.read.until_ms)

    def _partition(self, place: Place) -> Partition:
        found = Partition(*place, self._ends.ends[place], self._ends.stable[place], 0)
        stands = self._ends.standing.get(place)
        if stands is None:
            return found
        return replace(found, standing_ms=max(self._now - stands.since_ms, 0), holder=stands.holder)

    def _with_relay(self, partition: Partition, oldest: Mapping[int, int]) -> Partition:
        head = self._ends.heads.get(partition.number)
        if partition.topic != self._half.name or head is None:
            return partition
        since = oldest.get(partition.number, self._now)
        return replace(partition, relay_lag=max(partition.end - head, 0), relay_lag_ms=max(self._now - since, 0))

    def _write(self, table: str, rows: DataFrame) -> DataFrame:
        return self._tables.write(table, self._before.number + 1, rows)

    def _write_rows(self, table: str, rows: list[tuple[object, ...]]) -> None:
        self._write(table, self._spark.createDataFrame(rows, TABLES[table]).coalesce(1))

    def _kept(self, frame: DataFrame) -> DataFrame:
        self._persisted.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame
