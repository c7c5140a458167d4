"""`outbox audit`: prove what became of each message of a window."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import typer

from outbox._service.exit_codes import Exit, fail, guarded
from outbox._service.logs import configure_logs
from spark_jobs.auditing.job import audit
from spark_jobs.auditing.settings import AuditSettings
from spark_jobs.runtime.cli_options import only_given, pairs
from spark_jobs.runtime.errors import reason
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE
from spark_jobs.runtime.session import spark_session

app: typer.Typer = typer.Typer(help="Prove that each committed message of a window is visible once, with Spark.")


@app.callback(invoke_without_command=True)
def run(
    output: Annotated[str | None, typer.Option(help="Folder of the reports.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="First append time of halves: ISO 8601 (UTC), or ms since 1970.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="First append time behind the window.")] = None,
    last: Annotated[
        Literal["hour", "day"] | None, typer.Option(help="Without --from: the last one that is closed. Default: hour.")
    ] = None,
    grace: Annotated[
        int | None, typer.Option(help="How long a message may take to be delivered, ms. Default: 600000.")
    ] = None,
    spans: Annotated[
        str | None, typer.Option(help="spans.json of an earlier audit: read the same offsets again.")
    ] = None,
    topics: Annotated[
        str | None, typer.Option(help="Real topics to search besides those that the halves name, separated by commas.")
    ] = None,
    channel: Annotated[str | None, typer.Option(help="Channel. Default: outbox.")] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    postgres_url: Annotated[
        str | None, typer.Option(help="The database, if there is only one; better in OUTBOX_POSTGRES_URL.")
    ] = None,
    job_id: Annotated[str | None, typer.Option(help="Who the job is. Default: audit.")] = None,
    kafka: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Property of Kafka's Java client; repeatable.")
    ] = None,
) -> None:
    """Audit a closed window: 0 proven, 2 something is wrong, 3 not all can be known, 4 something must be corrected.

    Everything can also be set by environment (OUTBOX_…) or by the file that OUTBOX_CONFIG names.
    """
    given: dict[str, Any] = {
        "output": output,
        "window_start": start,
        "window_end": end,
        "last": last,
        "grace": grace,
        "spans": spans,
        "topics": topics,
        "channel": channel,
        "bootstrap_servers": bootstrap_servers,
        "postgres_url": postgres_url,
        "job_id": job_id,
    }

    def prove() -> None:
        given["kafka_java"] = pairs("--kafka", kafka)
        settings = AuditSettings(**only_given(given))
        settings.all_databases()  # before Spark starts, which takes a while
        configure_logs(settings.log_level, settings.log_format)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells every call into the JVM
        with spark_session(settings.name, settings.spark) as spark:
            try:
                code = audit(spark, settings)
            except JAVA_ERRORS as error:
                fail(f"the audit failed: {reason(error)}", Exit.FAILED)
            except JVM_GONE:
                fail("the audit failed: Spark's Java process is gone, killed or out of memory", Exit.FAILED)
        if code is not Exit.OK:
            raise SystemExit(code)

    guarded(prove)
