"""The job `audit`: what the databases committed against what the topics show, a verdict for each message."""

import json
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from outbox._postgres.callback_table import CLOCK_SKEW_MS
from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit
from spark_jobs.auditing.inputs import InputPlan
from spark_jobs.auditing.judge import Circumstances, judge
from spark_jobs.auditing.landed import LandedPlan, LandedTable
from spark_jobs.auditing.quick import compare_messages
from spark_jobs.auditing.report import report
from spark_jobs.auditing.row_snapshot import open_snapshot, take_snapshot
from spark_jobs.auditing.service_databases import Database
from spark_jobs.auditing.settings import AuditSettings
from spark_jobs.auditing.summary import Summary, findings_of, samples_of, summarize
from spark_jobs.auditing.table_snapshot import read_progress, write_table_rows
from spark_jobs.auditing.window import Inputs, TableProgress, Window
from spark_jobs.records.database_rows import COLUMNS, TABLE_COLUMNS, row_evidence, table_evidence
from spark_jobs.records.delivered import Began, real_evidence
from spark_jobs.records.evidence import Found, evidence
from spark_jobs.records.topics import discard_evidence, half_evidence, op_evidence
from spark_jobs.runtime.folder import Folder, upload
from spark_jobs.runtime.kafka_offsets import KafkaOffsets, source_properties
from spark_jobs.runtime.session import no_rows
from spark_jobs.runtime.source import source_options
from spark_jobs.runtime.spans import BROKER_SKEW_MS, Spans
from spark_jobs.tables.delta_output import Output

OPEN_TRANSACTIONS_MS = 30_000
"""How long to wait for Kafka transactions that are open at the end of a topic."""

SAMPLES = 10
"""Samples of each verdict in the report. No setting: all findings are in a table beside it."""

ROWS, TABLE_ROWS = "rows", "table_rows"
"""Folders beside the report with what is read from the databases, until it is judged."""

KAFKA_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key:string,value:binary>>"
)

_NEVER = 2**62

log = structlog.get_logger()


def audit(spark: SparkSession, settings: AuditSettings, *, landed: str = "", quick: bool = False) -> Exit:
    """Audit a window and write its findings, its summary and its report.

    Args:
        quick: Compare numbers and hashes, and judge no message: there are no findings.
        landed: An output of `land`, whose table is compared with Kafka.

    Returns:
        OK if all is proven, FINDINGS if something is wrong, UNPROVABLE if only something cannot be known.

    Raises:
        ConfigurationError: The window is not closed, or a database does not answer.
        SourceError: Kafka does not answer, or the channel does not exist.
        OutputError: The output cannot be written, or nothing was landed in the other one.
    """
    job = Audit(spark, settings)
    table = Output(spark, landed) if landed else None
    inputs, halves = job.fix()
    output = Folder(spark, f"{settings.output.rstrip('/')}/{inputs.window.name}{'-quick' if quick else ''}")
    for name in ("report.html", "summary.json"):  # of an earlier audit: should this one fail, none shall speak for it
        output.delete(name)
    try:
        databases = job.snapshot(inputs, output)
        log.info("Auditing", window=inputs.window.name, **_counts(inputs, databases))
        found, known = job.found(inputs, halves, databases, output), job.circumstances(inputs, databases, halves)
        if quick:
            summary = Summary(inputs, databases, (), {"quick": compare_messages(found, known)})
        else:
            judged = judge(evidence(*found), known).persist(StorageLevel.DISK_ONLY)
            findings_of(judged).write.mode("overwrite").parquet(output.path("findings"))
            summary = summarize(judged, inputs, databases)
    finally:
        output.delete(ROWS)
        output.delete(TABLE_ROWS)
    if table is not None:
        summary = job.with_landed(summary, table)
    samples = {} if quick else samples_of(spark.read.parquet(output.path("findings")), SAMPLES)
    output.put_text("summary.json", json.dumps(summary.document(), indent=2) + "\n")
    output.put_text("report.html", report(summary, samples))
    code = summary.exit_code()
    for one in summary.differences():
        log.warning("Differs", **asdict(one))
    numbers = {f"compared_{kind}": sum(one.found for one in several) for kind, several in summary.compared.items()}
    log.info("Audited", outcome=code.name, report=f"{output}/report.html", **summary.counts(), **numbers)
    return code


class Audit:
    """The reading part of one audit."""

    def __init__(self, spark: SparkSession, settings: AuditSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._databases = settings.all_databases()

    def fix(self) -> tuple[Inputs, DataFrame]:
        """Fix what is read, and read the halves, which name the real topics."""
        now = time.time_ns() // 1_000_000
        window = self._settings.window(now)
        window.check_closed(now)
        channel = self._settings.channel_names()
        with KafkaOffsets(self._spark, self._settings) as kafka:
            plan = InputPlan(kafka, channel, window, now, BROKER_SKEW_MS, OPEN_TRANSACTIONS_MS)
            halves = self._halves(plan.begun())
            tables, named = self._tables(window)
            searched = merged([*searches(halves, self._settings.topic_names(), window.start).items(), *named])
            return replace(plan.finish(searched), tables=tables), halves

    def _tables(self, window: Window) -> tuple[dict[str, TableProgress], list[tuple[str, int]]]:
        """Return how far message tables are delivered, and the topics of their rows; before topics' ends are taken."""
        progress, searched = dict[str, TableProgress](), list[tuple[str, int]]()
        for name, database in self._databases.items():
            with open_snapshot(name, database) as connection:
                if (found := read_progress(connection, MessageTable(database.table_names()), window)) is not None:
                    progress[name], topics = found
                    searched += topics
        return progress, searched

    def _halves(self, inputs: Inputs) -> DataFrame:
        records = self.read({f"{inputs.channel}.half": inputs.halves})
        return half_evidence(records, inputs.unsettled()).persist(StorageLevel.DISK_ONLY)

    def read(self, spans: Spans) -> DataFrame:
        """Return records of spans, as Spark's Kafka source gives them."""
        wanted = {topic: parts for topic, parts in spans.items() if parts}
        if not wanted:
            return no_rows(self._spark, KAFKA_COLUMNS)
        options = source_properties(source_options(self._settings, list(wanted)), wanted)
        return self._spark.read.format("kafka").options(**options).load()

    def snapshot(self, inputs: Inputs, output: Folder) -> list[Database]:
        """Copy the rows of the window beside the report, one file for each database."""
        output.delete(ROWS)
        output.delete(TABLE_ROWS)
        found = []
        with tempfile.TemporaryDirectory(prefix="outbox-audit-") as folder:
            for number, (name, database) in enumerate(self._databases.items()):
                file, table_file = Path(folder) / f"{number}.parquet", Path(folder) / f"{number}-table.parquet"
                with open_snapshot(name, database) as connection:
                    state = take_snapshot(connection, name, database, inputs.half_topic_id, inputs.halves, file)
                    if (progress := inputs.tables.get(name)) is not None:
                        messages = MessageTable(database.table_names())
                        tables = write_table_rows(connection, messages, inputs.window, progress, table_file)
                        state = replace(state, tables=tables)
                found.append(state)
                upload(self._spark, file, output, f"{ROWS}/{file.name}")
                if state.tables:
                    upload(self._spark, table_file, output, f"{TABLE_ROWS}/{table_file.name}")
        return found

    def found(self, inputs: Inputs, halves: DataFrame, databases: Sequence[Database], output: Folder) -> Found:
        """Return everything that was found."""
        window, topic_id, channel = inputs.halves, inputs.half_topic_id, inputs.channel
        ops = {f"{channel}.op": inputs.ops, f"{channel}.verdict": inputs.verdicts}
        rows = self._spark.read.schema(COLUMNS).parquet(output.path(ROWS))
        has_tables = any(database.tables for database in databases)
        reader = self._spark.read.schema(TABLE_COLUMNS)
        of_tables = reader.parquet(output.path(TABLE_ROWS)) if has_tables else no_rows(self._spark, TABLE_COLUMNS)
        return Found(
            halves,
            table_evidence(of_tables),
            op_evidence(self.read(ops), topic_id, window),
            row_evidence(rows, topic_id, window),
            real_evidence(self.read(inputs.reals), window, inputs.half_ends, began_in(inputs.window, databases)),
            discard_evidence(self.read({f"{channel}.discard": inputs.discards}), topic_id),
        )

    def with_landed(self, summary: Summary, output: Output) -> Summary:
        """Compare a table of `land` with Kafka."""
        table, inputs, now = LandedTable(output, self.read), summary.inputs, time.time_ns() // 1_000_000
        with KafkaOffsets(self._spark, self._settings) as kafka:
            plan = LandedPlan(kafka, inputs.window, now, BROKER_SKEW_MS, OPEN_TRANSACTIONS_MS)
            compared = table.compare(plan.spans(table.progress))
        noted = [
            {f"{topic}, landed": why for topic, why in notes.items()} for notes in (plan.incomplete, plan.shortened)
        ]
        found = replace(
            inputs, incomplete={**inputs.incomplete, **noted[0]}, shortened={**inputs.shortened, **noted[1]}
        )
        return replace(summary, inputs=found, compared={**summary.compared, "landed": compared})

    def circumstances(self, inputs: Inputs, databases: list[Database], halves: DataFrame) -> Circumstances:
        """Return what must be known besides."""
        told = halves.where("message.service is not null").select("message.service").distinct().collect()
        return Circumstances(
            inputs.window.grace,
            databases,
            [row.service for row in told],
            tuple(inputs.incomplete),
            self._settings.channel_names(),
            tuple(inputs.shortened),
        )


def began_in(window: Window, databases: Sequence[Database]) -> Began:
    """Return which messages of table mode are in question: all of the window, and those that no transaction made.

    Args:
        databases: Their states after the real topics' ends were taken.
    """
    now = max((database.tables.now for database in databases if database.tables), default=_NEVER)
    return Began(window.start, window.end, now + CLOCK_SKEW_MS)


def merged(several: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return for each topic the earliest time, out of several pairs of a topic and a time."""
    since: dict[str, int] = {}
    for topic, at in several:
        since[topic] = min(at, since.get(topic, at))
    return since


def searches(halves: DataFrame, also: Collection[str], start: int) -> dict[str, int]:
    """Return the real topics to search, and how far back records can be there.

    From the window's start, before which no half of it was appended: a topic may have the broker's time, whatever
    timestamp the user gave, and what went to the wrong topic may be there before the first half that names it. From
    the user's earliest timestamp, if that is older: a topic may keep it.

    Args:
        halves: The window's halves, as `spark_jobs.records.topics.half_evidence` gives them.
        also: Topics to search, whether a half names them or not.
        start: Start of the window, ms since 1970.
    """
    earliest = f.unix_millis(f.min("message.sent")).alias("since")
    named = halves.where("message.topic is not null").groupBy("message.topic").agg(earliest).collect()
    return dict.fromkeys(also, start) | {row.topic: min(row.since, start) for row in named}


def _counts(inputs: Inputs, databases: Iterable[Database]) -> dict[str, int]:
    """Return how much there is to audit, of each mode that is used."""
    halves = sum(end - start for start, end in inputs.halves.values())
    rows = sum(database.tables.messages for database in databases if database.tables)
    return {name: count for name, count in {"halves": halves, "rows": rows}.items() if count}
