"""`outbox land` and its commands: `compact`, `retire`, and `jars` and `java-home` for clusters."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from outbox._jars.fetch import fetch
from outbox._jars.java import find_java, spark_java_home
from outbox._service.exit_codes import Exit, fail, guarded
from outbox._service.logs import configure_logs
from outbox._service.signals import stop_on_signals
from outbox.errors import ConfigurationError
from spark_jobs.landing.job import DELETED, land
from spark_jobs.landing.retire import retire
from spark_jobs.runtime.cli_options import only_given, pairs
from spark_jobs.runtime.errors import JobFailedError
from spark_jobs.runtime.jvm import JVM_GONE
from spark_jobs.runtime.session import DELTA_LOCK, SPARK_LOCK, spark_session
from spark_jobs.runtime.settings import CompactSettings, LandSettings, OutputSettings, RetireSettings, SinkName
from spark_jobs.runtime.topic_check import check_topics
from spark_jobs.tables.compactor import compact

_JAVA_GONE = "the job ended: Spark's Java process is gone, killed or out of memory; start it again"

app: typer.Typer = typer.Typer(help="Land topics in tables, each record once, with Spark.")

Output = Annotated[str | None, typer.Option(help="Folder of the tables.")]
JobId = Annotated[str | None, typer.Option(help="Who the job is; names everything of it. Default: land.")]


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    topics: Annotated[str | None, typer.Option(help="Topics, separated by commas.")] = None,
    internal: Annotated[
        str | None, typer.Option(help="Topics of the channel besides: half, op, check, discard.")
    ] = None,
    channel: Annotated[str | None, typer.Option(help="That channel. Default: outbox.")] = None,
    output: Output = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder of checkpoints, one for each job id.")] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    job_id: JobId = None,
    sink: Annotated[SinkName | None, typer.Option(help="How tables are written. Default: delta.")] = None,
    parse: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC=SCHEMA", help="Land a topic's JSON typed, too; @FILE reads the schema. Repeatable."
        ),
    ] = None,
    available_now: Annotated[
        bool | None, typer.Option("--available-now", help="Land what is there now and end.")
    ] = None,
    trigger_seconds: Annotated[float | None, typer.Option(help="Pause between batches, s. Default: 10.")] = None,
    max_offsets_per_trigger: Annotated[
        int | None, typer.Option(help="Most offsets in a batch. Default: 1000000.")
    ] = None,
    min_offsets_per_trigger: Annotated[
        int | None, typer.Option(help="Fewest offsets that are worth a batch. Default: any.")
    ] = None,
    max_trigger_delay: Annotated[
        int | None, typer.Option(help="Maximum seconds to wait for --min-offsets-per-trigger. Default: 900.")
    ] = None,
    starting_offsets: Annotated[
        Literal["earliest", "latest"] | None, typer.Option(help="Where a new job begins. Default: earliest.")
    ] = None,
    accept_gap: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Go on without records of this topic that Kafka removed before they were landed; repeatable.",
        ),
    ] = None,
    prometheus_file: Annotated[
        Path | None, typer.Option(help="File *.prom for the node exporter's text file collector.")
    ] = None,
    kafka: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Property of Kafka's Java client; repeatable.")
    ] = None,
) -> None:
    """Land topics until SIGTERM. Everything can also be set by environment (OUTBOX_…) or by OUTBOX_CONFIG."""
    if context.invoked_subcommand is not None:
        return
    given: dict[str, Any] = {
        "topics": topics,
        "internal": internal,
        "channel": channel,
        "output": output,
        "checkpoint": checkpoint,
        "bootstrap_servers": bootstrap_servers,
        "job_id": job_id,
        "sink": sink,
        "available_now": available_now,
        "trigger_seconds": trigger_seconds,
        "max_offsets_per_trigger": max_offsets_per_trigger,
        "min_offsets_per_trigger": min_offsets_per_trigger,
        "max_trigger_delay": max_trigger_delay,
        "starting_offsets": starting_offsets,
        "accept_gap": ",".join(accept_gap) if accept_gap else None,
        "prometheus_file": prometheus_file,
    }

    def serve() -> None:
        given["kafka_java"] = pairs("--kafka", kafka)
        given["parse"] = {name: _schema(text) for name, text in (pairs("--parse", parse) or {}).items()} or None
        settings = LandSettings(**only_given(given))
        _configure(settings)
        check_topics(settings, settings.topic_names(), DELETED)
        with spark_session(settings.name, settings.spark, _locks(settings.sink)) as spark:
            try:
                # After the start of Spark, which sets a handler of its own for Ctrl-C.
                land(spark, settings, stop_on_signals())
            except JobFailedError as error:
                fail(str(error), Exit.FAILED)
            except JVM_GONE:
                fail(_JAVA_GONE, Exit.FAILED)

    guarded(serve)


@app.command("compact")
def run_compact(
    *,
    output: Output = None,
    job_id: JobId = None,
    closed_days: Annotated[
        int | None, typer.Option(help="Whole days between a day and today for it to be closed. Default: 1.")
    ] = None,
    min_folders: Annotated[int | None, typer.Option(help="Fewest folders that are worth it. Default: 2.")] = None,
    target_file_bytes: Annotated[
        int | None, typer.Option(help="Size that files are to have, bytes. Default: 268435456.")
    ] = None,
    manifest_readers_only: Annotated[
        bool | None,
        typer.Option(
            "--manifest-readers-only",
            help="Compact Parquet tables, too: every reader uses read_table or read_landed.",
        ),
    ] = None,
) -> None:
    """Write the many small files of closed days into few: with Delta's OPTIMIZE, or Parquet folders by a swap.

    Readers of Delta tables always read each row once. Of Parquet tables, every reader but read_table and read_landed
    reads compacted rows twice while the command runs, and after it was killed until it runs again; a stream over the
    folder reads them again for good. So Parquet tables need --manifest-readers-only.
    """
    given = {
        "output": output,
        "job_id": job_id,
        "closed_days": closed_days,
        "min_folders": min_folders,
        "target_file_bytes": target_file_bytes,
        "manifest_readers_only": manifest_readers_only,
    }

    def serve() -> None:
        settings = CompactSettings(**only_given(given))
        _configure(settings)
        with spark_session(settings.name, settings.spark, [DELTA_LOCK]) as spark:
            try:
                compact(spark, settings, datetime.now(UTC).date(), stop_on_signals().is_set)
            except JobFailedError as error:
                fail(str(error), Exit.FAILED)
            except JVM_GONE:
                fail(_JAVA_GONE, Exit.FAILED)

    guarded(serve)


@app.command("retire")
def run_retire(
    topic: Annotated[str, typer.Argument(help="Topic that is not landed any more.", show_default=False)],
    *,
    output: Output = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder of checkpoints, as of the job.")] = None,
    job_id: JobId = None,
) -> None:
    """End the landing of one topic, also of one that is gone from Kafka; the job goes on with the others.

    Stop the job first, and start it without the topic afterwards. What is landed of the topic stays in the tables. The
    first offsets that are not landed are recorded in a manifest. It needs no Kafka.
    """
    given = {"output": output, "checkpoint": checkpoint, "job_id": job_id}

    def serve() -> None:
        settings = RetireSettings(**only_given(given))
        _configure(settings)
        with spark_session(settings.name, settings.spark, [DELTA_LOCK]) as spark:
            try:
                retire(spark, settings, topic)
            except JVM_GONE:
                fail(_JAVA_GONE, Exit.FAILED)

    guarded(serve)


@app.command("jars")
def show_jars(
    *,
    sink: Annotated[SinkName, typer.Option(help="How tables will be written.")] = SinkName.DELTA,
) -> None:
    """Print the jars that spark-submit needs, for --jars; those that are missing are fetched."""
    guarded(lambda: typer.echo(",".join(str(jar) for lock in _locks(sink) for jar in fetch(lock))))


@app.command("java-home")
def show_java_home() -> None:
    """Print the JAVA_HOME to run spark-submit with: of the Java that is installed, or of the one of a wheel."""
    guarded(lambda: typer.echo(spark_java_home(find_java())))


def _locks(sink: SinkName) -> list[Path]:
    return [SPARK_LOCK, DELTA_LOCK] if sink is SinkName.DELTA else [SPARK_LOCK]


def _configure(settings: OutputSettings) -> None:
    configure_logs(settings.log_level, settings.log_format)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells every call into the JVM


def _schema(text: str) -> str:
    """Return a schema, or what the file holds that is named after an @."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"the schema in {text[1:]} cannot be read: {error}") from error
