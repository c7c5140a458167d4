"""`outbox watch`: figures of a channel, what waits in it, and alerts."""

from __future__ import annotations

from typing import Any

import typer

from outbox._cli.setting_options import layers, setting_options
from outbox._service.exit_codes import Exit, fail
from spark_jobs.runtime.errors import JobFailedError
from spark_jobs.runtime.job_logs import configure_job_logs
from spark_jobs.runtime.session import spark_session
from spark_jobs.runtime.stopping import asked_to_stop
from spark_jobs.runtime.topic_check import check_topics
from spark_jobs.watching.job import watch
from spark_jobs.watching.real_time import SLOTS, watch_in_real_time
from spark_jobs.watching.settings import WatchSettings

app: typer.Typer = typer.Typer(
    epilog=layers(WatchSettings),
    help="Watch a channel with Spark: figures by minute, what waits, what hangs, alerts.",
)


@app.callback(invoke_without_command=True)
@setting_options(WatchSettings)
def run(given: dict[str, Any]) -> None:
    """Watch a channel until SIGTERM."""
    settings = WatchSettings(**given)
    configure_job_logs(settings)
    check_topics(settings, settings.topic_names())
    job, slots = (watch_in_real_time, SLOTS) if settings.real_time else (watch, {})
    with spark_session(settings.name, {**slots, **settings.spark}) as spark:
        try:
            with asked_to_stop(spark) as stop:
                job(spark, settings, stop)
        except JobFailedError as error:
            fail(str(error), Exit.FAILED)
