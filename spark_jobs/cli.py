"""`outbox land`: land topics in a table."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import typer

from outbox.errors import ConfigurationError
from outbox.service.exits import Exit, fail, guarded
from outbox.service.logs import configure_logs
from outbox.service.signals import stop_on_signals
from spark_jobs.errors import JobFailedError
from spark_jobs.land import land
from spark_jobs.session import spark_session
from spark_jobs.settings import LandSettings

app: typer.Typer = typer.Typer(help="Land topics in a table of Parquet files, each record once, with Spark.")


@app.callback(invoke_without_command=True)
def run(
    topics: Annotated[str | None, typer.Option(help="Topics, separated by commas.")] = None,
    output: Annotated[str | None, typer.Option(help="Folder of the table.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Folder of checkpoints, one for each job id.")] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    job_id: Annotated[str | None, typer.Option(help="Who the job is; names everything of it. Default: land.")] = None,
    available_now: Annotated[
        bool | None, typer.Option("--available-now", help="Land what is there now and end.")
    ] = None,
    trigger_seconds: Annotated[float | None, typer.Option(help="Pause between batches, s. Default: 10.")] = None,
    max_offsets_per_trigger: Annotated[
        int | None, typer.Option(help="Most offsets in a batch. Default: 1000000.")
    ] = None,
    starting_offsets: Annotated[
        Literal["earliest", "latest"] | None, typer.Option(help="Where a new job begins. Default: earliest.")
    ] = None,
    kafka: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Property of Kafka's Java client; repeatable.")
    ] = None,
) -> None:
    """Land topics until SIGTERM. Everything can also be set by environment (OUTBOX_…) or by OUTBOX_CONFIG."""
    given: dict[str, Any] = {
        "topics": topics,
        "output": output,
        "checkpoint": checkpoint,
        "bootstrap_servers": bootstrap_servers,
        "job_id": job_id,
        "available_now": available_now,
        "trigger_seconds": trigger_seconds,
        "max_offsets_per_trigger": max_offsets_per_trigger,
        "starting_offsets": starting_offsets,
    }

    def serve() -> None:
        given["kafka_java"] = _properties(kafka or [])
        settings = LandSettings(**{name: value for name, value in given.items() if value is not None})
        configure_logs(settings.log_level, settings.log_format)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells every call into the JVM
        with spark_session(settings.name, settings.spark) as spark:
            try:
                # After the start of Spark, which sets a handler of its own for Ctrl-C.
                land(spark, settings, stop_on_signals())
            except JobFailedError as error:
                fail(str(error), Exit.FAILED)

    guarded(serve)


def _properties(texts: list[str]) -> dict[str, str] | None:
    if wrong := [text.partition("=")[0] for text in texts if "=" not in text]:
        raise ConfigurationError(f"--kafka {wrong[0]}: write NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)} or None
