"""The job `replay`: landed records to topics once more, on purpose and countable."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

import structlog
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from outbox._failpoints import failpoint
from outbox._kafka.admin import admin_client, describe_targets
from outbox._rules.topic_description import TopicDescription
from outbox._service.exit_codes import UnsafeError
from outbox._service.output import Figures, log_progress
from outbox._settings.of_jobs import PartitionBy
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.fields import MAX_INT64
from outbox.protocol.names import Channel, is_internal_topic, sibling_topic
from outbox.protocol.partitioner import partition_for_key
from outbox.protocol.record import Record
from spark_jobs.replaying.kafka_transaction import FencedError, KafkaTransaction, TransactionFailedError
from spark_jobs.replaying.lane_writer import LandedRecord, LaneWriter, Replay
from spark_jobs.replaying.plan import Checksum, LandedPlace, Lane, Part, Plan, Target
from spark_jobs.replaying.progress_log import PARTITION, Entries, Ledger, make_ledger, plan_key
from spark_jobs.replaying.selection import absent_ids, select, up_to
from spark_jobs.replaying.settings import ReplaySettings
from spark_jobs.runtime.errors import JobFailedError, OutputError, reason
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE
from spark_jobs.runtime.source import refuse_missing
from spark_jobs.tables.delta_output import Output

MOST_TASKS = 200
"""Tasks that write; a lane belongs to one of them."""

ORDER = ("_target", "_lane", "topic", "partition", "offset")

OUTGOING = (*ORDER, "_timestamp", "_size", "_hash", "key", "value", "headers")
"""What a task that writes is given of each record."""


def with_lanes(records: DataFrame, target: str, partitions: Mapping[str, int], by: PartitionBy) -> DataFrame:
    """Add where each record goes, and what is counted of it.

    Args:
        target: The topic that all go to; empty: each goes to its own.
        partitions: How many partitions each target topic has.
        by: Whether the key chooses the partition, as in a Java producer, or it is the original one. A record without
            a key goes by its original partition.
    """
    topic = f.lit(target) if target else f.col("topic")
    count = f.create_map(
        *(part for name, number in sorted(partitions.items()) for part in (f.lit(name), f.lit(number)))
    )
    return records.select(
        "*",
        topic.alias("_target"),
        _lane(count[topic], by).alias("_lane"),
        f.unix_millis("timestamp").alias("_timestamp"),
        _size().alias("_size"),
        f.xxhash64("topic", "partition", "offset").alias("_hash"),
    )


def _lane(count: Column, by: PartitionBy) -> Column:
    if by is PartitionBy.ORIGINAL:
        return f.col("partition")
    # A lambda, because Spark makes an Arrow function of type hints, which needs pandas. It is called for all rows,
    # whatever the condition around it is.
    of_key = f.udf(lambda key, partitions: None if key is None else partition_for_key(bytes(key), partitions), "int")
    return f.when(f.col("key").isNull(), f.col("partition") % count).otherwise(of_key(f.col("key"), count))


def _size() -> Column:
    def and_one(total: Column, header: Column) -> Column:
        return total + f.octet_length(header["key"]) + f.coalesce(f.octet_length(header["value"]), f.lit(0))

    parts = [f.coalesce(f.octet_length(name), f.lit(0)) for name in ("key", "value")]
    return parts[0] + parts[1] + f.coalesce(f.aggregate("headers", f.lit(0), and_one), f.lit(0))


def parts_of(laned: DataFrame) -> list[Part]:
    """Return what goes from where to where, counted."""
    rows = (
        laned.groupBy("_target", "_lane", "topic", "partition")
        .agg(
            f.count("*").alias("rows"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            f.min("_timestamp").alias("oldest"),
            f.max("_timestamp").alias("newest"),
            f.sum("_size").alias("size"),
            f.max("_size").alias("largest"),
            f.count_if(f.col("key").isNull()).alias("keyless"),
            # In halves: sums of whole hashes would overflow, which Spark refuses.
            f.sum(f.shiftright("_hash", 32)).alias("high"),
            f.sum(f.col("_hash").bitwiseAND(f.lit(0xFFFF_FFFF))).alias("low"),
        )
        .orderBy("_target", "_lane", "topic", "partition")
        .collect()
    )
    return [_part(row) for row in rows]


def _part(row: Row) -> Part:
    names = ("topic", "partition", "rows", "first", "last", "oldest", "newest", "size", "largest", "keyless")
    fields = {name: row[name] for name in names}
    return Part(Lane(row["_target"], row["_lane"]), **fields, checksum=Checksum.of_halves(row["high"], row["low"]))


def in_order(laned: DataFrame, lanes: int) -> DataFrame:
    """Return records as the tasks write them: each lane whole, in one task, in its order."""
    # The number is given, so that Spark neither joins nor splits partitions on its own.
    tasks = max(min(lanes, MOST_TASKS), 1)
    return laned.select(*OUTGOING).repartition(tasks, "_target", "_lane").sortWithinPartitions(*ORDER)


OVERHEAD_BYTES = 512
"""Bytes that are allowed for the headers of a replay, and for what Kafka puts around a record."""

_BROKERS_TIME = "LogAppendTime"


def internal_topics(topics: Iterable[str], described: Mapping[str, TopicDescription], channel: Channel) -> list[str]:
    """Return those topics that belong to Kafka or to a channel, or perhaps do: their records are no messages."""
    others = {name for name, topic in described.items() if topic.of_channel or _is_sibling_hidden(topic)}
    return sorted(name for name in set(topics) if name in others or is_internal_topic(name, channel))


def _is_sibling_hidden(topic: TopicDescription) -> bool:
    sibling = sibling_topic(topic.name)
    return sibling is not None and topic.lacks.endswith(f" {sibling}")


def closed_topics(targets: Mapping[str, TopicDescription]) -> list[str]:
    """Return the rights that this client lacks to write to some of the topics."""
    return [topic.lacks for _, topic in sorted(targets.items()) if topic.lacks]


def problems(parts: Iterable[Part], targets: Mapping[str, TopicDescription], now: int) -> Iterator[str]:
    """Why Kafka would refuse some of it, or keep it otherwise than it was.

    Args:
        now: ms since 1970.
    """
    for part in parts:
        target = targets[part.lane.topic]
        if why := next(_problems(part, target, now), ""):
            yield (
                f"Records of {part.topic}/{part.partition} cannot go to topic {target.name}: {why}. "
                "Leave them out with where, or name another target."
            )


def _problems(part: Part, target: TopicDescription, now: int) -> Iterator[str]:
    settings = target.settings
    if part.lane.partition >= target.partitions:
        yield f"it has {target.partitions} partitions, and no partition {part.lane.partition}"
    if part.largest + OVERHEAD_BYTES > target.max_message_bytes:
        yield f"the largest has {part.largest} bytes, and the topic takes {target.max_message_bytes} with all around"
    if part.keyless and "compact" in settings.get("cleanup.policy", ""):
        yield f"{part.keyless} have no key, and the topic is compacted"
    if settings.get("message.timestamp.type") != _BROKERS_TIME:
        yield from _time_problems(part, settings, now)


def _time_problems(part: Part, settings: Mapping[str, str], now: int) -> Iterator[str]:
    if part.oldest <= 0:
        yield "some have no timestamp, or one before 1970, which librdkafka cannot write"
    before = int(settings.get("message.timestamp.before.max.ms", MAX_INT64))
    after = int(settings.get("message.timestamp.after.max.ms", MAX_INT64))
    if now - part.oldest > before:
        yield f"some have a timestamp {now - part.oldest} ms ago, and the topic takes {before} ms at most"
    if part.newest - now > after:
        yield f"some have a timestamp {part.newest - now} ms ahead, and the topic takes {after} ms at most"


def warnings(parts: Iterable[Part], targets: Mapping[str, TopicDescription], now: int) -> Iterator[str]:
    """Yield what would come as a surprise, by topic."""
    oldest: dict[str, int] = {}
    for part in parts:
        oldest[part.lane.topic] = min(part.oldest, oldest.get(part.lane.topic, part.oldest))
    for topic, first in sorted(oldest.items()):
        settings = targets[topic].settings
        retention = int(settings.get("retention.ms", -1)) if "delete" in settings.get("cleanup.policy", "") else -1
        if settings.get("message.timestamp.type") != _BROKERS_TIME and 0 <= retention < now - first:
            yield (
                f"topic {topic} keeps records for {retention} ms, and some that it is to get are older: Kafka may soon "
                "delete them"
            )


def changed(planned: Mapping[str, Target], targets: Mapping[str, TopicDescription]) -> list[str]:
    """Target topics that are others than when the replay was begun, or gone."""
    return sorted(name for name, target in planned.items() if name not in targets or targets[name].id != target.id)


TRANSACTION_BYTES = 16 * 1024 * 1024
"""Most bytes in a Kafka transaction: it bounds memory."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A replay that can begin, or go on."""

    rows: DataFrame
    parts: list[Part]
    plan: Plan
    entries: Entries
    targets: Mapping[str, TopicDescription]


class ReplayJob:
    """One run of a replay."""

    def __init__(self, spark: SparkSession, settings: ReplaySettings) -> None:
        self._spark = spark
        self._settings = settings
        self._table = Output(spark, settings.table)
        self._kafka = settings.connection()
        self._channel = settings.channel_names()

    def prepare(self) -> Prepared:
        """Select, look at the topics, and compare with what an earlier run has planned; nothing is written."""
        with Ledger(self._kafka, self._channel, self._settings.replay_id) as ledger:
            entries = ledger.read()
        chosen = self._chosen(entries.plan).persist(StorageLevel.DISK_ONLY)  # one selection, however often it is used
        sources = [row.topic for row in chosen.select("topic").distinct().collect()]
        self._refuse_unclear(chosen, sources)
        progress = self._table.progress()
        for gap in () if progress is None else progress.gaps:
            if gap.topic in sources:
                log.warning("Table has an accepted gap; its records cannot be replayed", offsets=str(gap))
        targets = self._targets(sources, entries.plan)
        counts = {name: topic.partitions for name, topic in targets.items()}
        if entries.plan is not None:
            counts |= {name: target.partitions for name, target in entries.plan.targets.items()}
        rows = with_lanes(chosen, self._settings.target, counts, self._settings.partition_by)
        parts = parts_of(rows)
        plan = Plan.of(
            parts, {name: Target(targets[name].id, count) for name, count in counts.items() if name in targets}
        )
        self._refuse_changed(plan, entries.plan)
        now = time.time_ns() // 1_000_000
        if refusal := next(problems(parts, targets, now), None):
            raise ConfigurationError(refusal)
        for warning in warnings(parts, targets, now):
            log.warning(warning)
        return Prepared(rows, parts, plan, entries, targets)

    def _chosen(self, plan: Plan | None) -> DataFrame:
        selection, findings = self._settings.selection(), None
        if selection.verdicts:
            try:
                findings = self._spark.read.parquet(f"{self._settings.findings.rstrip('/')}/findings")
            except AnalysisException as error:
                raise OutputError(
                    f"The findings of an audit in {self._settings.findings} cannot be read: {reason(error)}"
                ) from error
        chosen = select(self._table.read(), selection, findings)
        return chosen if plan is None else up_to(chosen, plan.lasts)

    def _refuse_unclear(self, chosen: DataFrame, topics: list[str]) -> None:
        selection = self._settings.selection()
        if absent := absent_ids(chosen, selection.ids) if selection.ids else []:
            raise ConfigurationError(
                f"{len(absent)} of the ids select no record of {self._settings.table}, such as {absent[0]}. Leave them "
                "out, or land their topics first."
            )
        if not topics:
            raise ConfigurationError(
                f"The selection has no record of {self._settings.table}, so there is nothing to replay. Select others."
            )

    def _targets(self, sources: list[str], plan: Plan | None) -> dict[str, TopicDescription]:
        names = [self._settings.target] if self._settings.target else sources
        described = describe_targets(admin_client(self._kafka), {*names, *sources}, writing=True)
        self._refuse_internal(names, sources, described)
        targets = {name: topic for name, topic in described.items() if name in names}
        if plan is not None and (other := changed(plan.targets, targets)):
            raise UnsafeError(
                f"Topic {other[0]} is another one than when replay {self._settings.replay_id} began, or gone. What was "
                "written to the former one is not in it. Begin a replay with an id of its own."
            )
        refuse_missing(names, targets)
        return targets

    def _refuse_internal(self, names: list[str], sources: list[str], described: Mapping[str, TopicDescription]) -> None:
        """Refuse topics that this client may not write to, and internal topics as sources and as targets."""
        if closed := closed_topics({name: topic for name, topic in described.items() if name in names}):
            raise ConfigurationError(f"This client lacks {', '.join(closed)}. Grant what is missing.")
        if internal := internal_topics(sources, described, self._channel):
            raise ConfigurationError(
                f"The selection has records of {', '.join(internal)}, which are no messages. Leave them out with where."
            )
        if internal := internal_topics(names, described, self._channel):
            raise ConfigurationError(f"Target {internal[0]} is an internal topic. Choose another topic.")

    def _refuse_changed(self, plan: Plan, planned: Plan | None) -> None:
        if planned is not None and planned != plan:
            raise UnsafeError(
                f"Replay {self._settings.replay_id} was begun with {planned.rows} records, and this selection has "
                f"{plan.rows}, or others. Run it as it was begun, or begin another one with an id of its own."
            )

    def begin(self, prepared: Prepared) -> Prepared:
        """Write the plan into the ledger; of two processes that try, one does.

        Returns:
            The same, with the ledger's entries then.
        """
        if prepared.entries.plan is not None:
            return prepared
        replication = min(topic.replication for topic in prepared.targets.values())
        make_ledger(self._kafka, self._channel, replication)
        replay_id, now = self._settings.replay_id, time.time_ns() // 1_000_000
        entry = Record(
            self._channel.replay_ledger_topic, PARTITION, plan_key(replay_id), prepared.plan.encode(), [], now
        )
        try:
            with (
                KafkaTransaction(self._kafka, self._channel.replay_group(replay_id)) as transaction,
                Ledger(self._kafka, self._channel, replay_id) as ledger,
            ):
                found = ledger.read()
                self._refuse_changed(prepared.plan, found.plan)
                if found.plan is None:
                    transaction.begin()
                    transaction.write([entry])
                    transaction.commit()
                return replace(prepared, entries=Entries(prepared.plan, found.progress))
        except (TransactionFailedError, FencedError) as error:
            raise JobFailedError(
                f"The plan cannot be written to the replay ledger: {error}. Run the replay again."
            ) from error

    def write(self, prepared: Prepared) -> int:
        """Write what is not written yet.

        Returns:
            How many records were written now.

        Raises:
            JobFailedError: Some of it was not written; the same replay goes on where it stopped.
        """
        settings, plan = self._settings, prepared.plan
        limits = {name: topic.max_message_bytes for name, topic in prepared.targets.items()}
        replay = Replay(
            settings.replay_id,
            self._channel,
            self._kafka,
            settings.transaction_rows,
            TRANSACTION_BYTES,
            plan.lanes,
            limits,
        )
        try:
            results = in_order(prepared.rows, len(plan.lanes)).rdd.mapPartitions(lambda rows: write_lanes(replay, rows))
            outcomes = results.collect()
        except JAVA_ERRORS as error:
            raise JobFailedError(
                f"Replay {replay.id} failed: {reason(error)}. It goes on when it is run again."
            ) from error
        except JVM_GONE as error:
            raise JobFailedError(
                f"Replay {replay.id} failed: Spark's Java process is gone, or out of memory. "
                "Run it again, with more memory."
            ) from error
        if failures := [outcome for outcome in outcomes if isinstance(outcome, str)]:
            raise JobFailedError(failures[0])
        return sum(outcome for outcome in outcomes if isinstance(outcome, int))


def write_lanes(replay: Replay, rows: Iterable[Row]) -> Iterator[int | str]:
    """Yield what one task does: write the lanes that it is given, one after another.

    Args:
        rows: Lane by lane, in the order of `spark_jobs.replaying.job.ORDER`.

    Returns:
        Of each lane how many records were written, or why not.
    """
    with Ledger(replay.kafka, replay.channel, replay.id) as ledger:
        for lane, records in groupby(rows, lambda row: Lane(row["_target"], row["_lane"])):
            try:
                yield LaneWriter(replay, lane, ledger).write(map(_landed, records))
            except (ConfigurationError, JobFailedError) as error:
                yield str(error)
                return


def _landed(row: Row) -> LandedRecord:
    headers: list[tuple[str, str | bytes | None]] = [
        (header.key, None if header.value is None else bytes(header.value)) for header in row.headers or ()
    ]
    key, value = (None if found is None else bytes(found) for found in (row.key, row.value))
    place = LandedPlace(row.topic, row.partition, row.offset)
    return LandedRecord(place, row["_hash"], row["_size"], key, value, headers, row["_timestamp"])


def replay(spark: SparkSession, settings: ReplaySettings) -> Prepared:
    """Write the selected records; those that this replay has written already, it passes over.

    Returns:
        What was selected, and the ledger's entries before.

    Raises:
        ConfigurationError: It cannot be done as it was asked for; nothing was written.
        JobFailedError: Some of it was not written; the same replay goes on where it stopped.
    """
    job = ReplayJob(spark, settings)
    prepared = job.prepare()
    if settings.dry_run:
        return prepared
    prepared = job.begin(prepared)
    failpoint("replay.planned")
    log.info("Replaying", replay=settings.replay_id, records=prepared.plan.rows, written_before=prepared.entries.rows)
    with Ledger(settings.connection(), settings.channel_names(), settings.replay_id) as ledger:

        def figures() -> Figures:
            with suppress(KafkaUnreachable):  # what is shown may be old; the write finds out
                ledger.glance()
            return {"records": prepared.plan.rows, "written": ledger.seen.rows}

        with log_progress(figures):
            written = job.write(prepared)
    log.info("Replayed", replay=settings.replay_id, records=prepared.plan.rows, written=written)
    return prepared
