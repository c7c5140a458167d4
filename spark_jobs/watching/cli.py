"""`outbox watch`: figures of a channel, what waits in it, and alerts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from outbox._service.exit_codes import Exit, fail, guarded
from outbox._service.logs import configure_logs
from outbox._service.signals import stop_on_signals
from spark_jobs.runtime.cli_options import only_given, pairs
from spark_jobs.runtime.errors import JobFailedError
from spark_jobs.runtime.session import spark_session
from spark_jobs.runtime.topic_check import check_topics
from spark_jobs.watching.job import watch
from spark_jobs.watching.real_time import SLOTS, watch_in_real_time
from spark_jobs.watching.settings import WatchSettings

app: typer.Typer = typer.Typer(help="Watch a channel: figures by minute, what waits, what hangs, alerts; with Spark.")


@app.callback(invoke_without_command=True)
def run(
    *,
    output: Annotated[str | None, typer.Option(help="Folder of the tables.")] = None,
    topics: Annotated[str | None, typer.Option(help="Real topics, separated by commas.")] = None,
    channel: Annotated[str | None, typer.Option(help="Channel. Default: outbox.")] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    job_id: Annotated[str | None, typer.Option(help="Who the job is. Default: watch.")] = None,
    available_now: Annotated[
        bool | None, typer.Option("--available-now", help="Watch what is there now, look once, and end.")
    ] = None,
    trigger_seconds: Annotated[float | None, typer.Option(help="Pause between batches, s. Default: 30.")] = None,
    starting_offsets: Annotated[
        Literal["earliest", "latest"] | None, typer.Option(help="Where a new job begins. Default: latest.")
    ] = None,
    prometheus_file: Annotated[
        Path | None, typer.Option(help="File *.prom for the node exporter's text file collector.")
    ] = None,
    alerts_topic: Annotated[str | None, typer.Option(help="Topic that alerts go to.")] = None,
    real_time: Annotated[
        bool | None, typer.Option("--real-time", help="Only alerts on single records, within milliseconds.")
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder of checkpoints, for --real-time.")] = None,
    kafka: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Property of Kafka's Java client; repeatable.")
    ] = None,
) -> None:
    """Watch a channel until SIGTERM. Everything can also be set by environment (OUTBOX_…) or by OUTBOX_CONFIG."""
    given: dict[str, Any] = {
        "output": output,
        "topics": topics,
        "channel": channel,
        "bootstrap_servers": bootstrap_servers,
        "job_id": job_id,
        "available_now": available_now,
        "trigger_seconds": trigger_seconds,
        "starting_offsets": starting_offsets,
        "prometheus_file": prometheus_file,
        "alerts_topic": alerts_topic,
        "real_time": real_time,
        "checkpoint": checkpoint,
    }

    def serve() -> None:
        given["kafka_java"] = pairs("--kafka", kafka)
        settings = WatchSettings(**only_given(given))
        configure_logs(settings.log_level, settings.log_format)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells every call into the JVM
        check_topics(settings, settings.topic_names())
        job, slots = (watch_in_real_time, SLOTS) if settings.real_time else (watch, {})
        with spark_session(settings.name, {**slots, **settings.spark}) as spark:
            try:
                # After the start of Spark, which sets a handler of its own for Ctrl-C.
                job(spark, settings, stop_on_signals())
            except JobFailedError as error:
                fail(str(error), Exit.FAILED)

    guarded(serve)
