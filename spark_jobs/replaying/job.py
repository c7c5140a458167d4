"""The job `replay`: landed records to topics once more, on purpose and countable."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

import structlog
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.storagelevel import StorageLevel
from rich.console import Console

from outbox._failpoints import failpoint
from outbox._kafka.admin import admin_client, describe_targets
from outbox._rules.topic_description import TopicDescription
from outbox._service.exit_codes import UnsafeError
from outbox._service.output import Figures, show_progress
from outbox.errors import ConfigurationError, KafkaUnreachable
from outbox.protocol.record import Record
from spark_jobs.replaying.kafka_transaction import FencedError, KafkaTransaction, TransactionFailedError
from spark_jobs.replaying.lane_writer import LandedRecord, LaneWriter, Replay
from spark_jobs.replaying.lanes import in_order, parts_of, with_lanes
from spark_jobs.replaying.plan import LandedPlace, Lane, Part, Plan, Target
from spark_jobs.replaying.progress_log import PARTITION, Entries, Ledger, make_ledger, plan_key
from spark_jobs.replaying.selection import absent_ids, select, up_to
from spark_jobs.replaying.settings import ReplaySettings
from spark_jobs.replaying.target_check import changed, closed_topics, internal_topics, problems, warnings
from spark_jobs.runtime.errors import JobFailedError, OutputError, reason
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE
from spark_jobs.runtime.source import refuse_missing
from spark_jobs.tables.delta_output import Output

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
        rows: Lane by lane, in the order of `spark_jobs.replaying.lanes.ORDER`.

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


def replay(spark: SparkSession, settings: ReplaySettings, terminal: Console | None = None) -> Prepared:
    """Write the selected records; those that this replay has written already, it passes over.

    Args:
        terminal: Where the progress is shown; None: a log line every minute.

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

        with show_progress(figures, terminal):
            written = job.write(prepared)
    log.info("Replayed", replay=settings.replay_id, records=prepared.plan.rows, written=written)
    return prepared
