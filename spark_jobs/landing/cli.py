"""`outbox land` and its commands: `maintain`, and `jars` for clusters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.sql import SparkSession

from outbox._cli.setting_options import layers, setting_options
from outbox._jars.fetch import fetch
from outbox._jars.java import find_java, spark_java_home
from outbox._service.exit_codes import Exit, fail, guarded
from outbox._settings.of_jobs import LandSettings, MaintainSettings, OutputSettings
from spark_jobs.landing.job import land
from spark_jobs.runtime.errors import JobFailedError
from spark_jobs.runtime.jvm import JVM_GONE
from spark_jobs.runtime.session import DELTA_LOCK, SPARK_LOCK, asked_to_stop, configure_job_logs, spark_session
from spark_jobs.tables.delta_output import maintain

_JAVA_GONE = "the job ended: Spark's Java process is gone, killed or out of memory; start it again"

app: typer.Typer = typer.Typer(
    epilog=layers(LandSettings), help="Land topics in Delta tables, each record once, with Spark."
)


@app.callback(invoke_without_command=True)
@setting_options(LandSettings)
def run(context: typer.Context, given: dict[str, Any]) -> None:
    """Land topics until SIGTERM."""
    if context.invoked_subcommand is not None:
        return
    settings = LandSettings(**given)
    configure_job_logs(settings)
    with _session(settings, [SPARK_LOCK, DELTA_LOCK]) as spark, asked_to_stop(spark) as stop:
        land(spark, settings, stop)


@app.command("maintain")
@setting_options(MaintainSettings)
def run_maintain(given: dict[str, Any]) -> None:
    """Write many small files into few, and delete files that were replaced long ago: Delta's OPTIMIZE and VACUUM.

    The job may run meanwhile, and readers notice nothing. It needs no Kafka.
    """
    settings = MaintainSettings(**given)
    configure_job_logs(settings)
    with _session(settings, [DELTA_LOCK]) as spark, asked_to_stop(spark):
        maintain(spark, settings)


@app.command("jars")
def show_jars(
    java_home: Annotated[
        bool, typer.Option("--java-home", help="Print the JAVA_HOME instead: of an installed Java, or of a wheel's.")
    ] = False,
) -> None:
    """Print the jars that spark-submit needs, for --jars; those that are missing are fetched."""
    if java_home:
        guarded(lambda: typer.echo(spark_java_home(find_java())))
    else:
        guarded(lambda: typer.echo(",".join(str(jar) for lock in (SPARK_LOCK, DELTA_LOCK) for jar in fetch(lock))))


@contextmanager
def _session(settings: OutputSettings, locks: Sequence[Path]) -> Iterator[SparkSession]:
    """Yield a Spark session; what the job cannot recover from ends the command with one line."""
    with spark_session(settings.name, settings.spark, locks) as spark:
        try:
            yield spark
        except JobFailedError as error:
            fail(str(error), Exit.FAILED)
        except JVM_GONE:
            fail(_JAVA_GONE, Exit.FAILED)
