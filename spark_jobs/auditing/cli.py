"""`outbox audit`: prove what became of each message of a window."""

from typing import Any

import typer

from outbox._cli.setting_options import layers, setting_options
from outbox._service.exit_codes import Exit, fail
from spark_jobs.auditing.job import audit
from spark_jobs.auditing.settings import AuditSettings
from spark_jobs.runtime.errors import reason
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE
from spark_jobs.runtime.session import configure_job_logs, spark_session

app: typer.Typer = typer.Typer(
    epilog=layers(AuditSettings), help="Prove that each committed message of a window is visible once, with Spark."
)


@app.callback(invoke_without_command=True)
@setting_options(AuditSettings)
def run(given: dict[str, Any]) -> None:
    """Audit a closed window: 0 proven, 2 something is wrong, 3 not all can be known, 4 something must be corrected."""
    settings = AuditSettings(**given)
    settings.all_databases()  # before Spark starts, which takes a while
    configure_job_logs(settings)
    with spark_session(settings.name, settings.spark) as spark:
        try:
            code = audit(spark, settings)
        except JAVA_ERRORS as error:
            fail(f"the audit failed: {reason(error)}", Exit.FAILED)
        except JVM_GONE:
            fail("the audit failed: Spark's Java process is gone, killed or out of memory", Exit.FAILED)
    if code is not Exit.OK:
        raise SystemExit(code)
