"""`outbox audit`: prove what became of each message of a window."""

from typing import Annotated, Any

from outbox._cli.setting_options import option, subcommand
from outbox._service.exit_codes import Exit, fail
from spark_jobs.auditing.job import audit
from spark_jobs.auditing.settings import AuditSettings
from spark_jobs.runtime.errors import reason
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE
from spark_jobs.runtime.session import DELTA_LOCK, SPARK_LOCK, configure_job_logs, spark_session


@subcommand(AuditSettings)
def app(
    given: dict[str, Any],
    *,
    quick: Annotated[bool, option("Compare only numbers and hashes, and judge no message.", "--quick")] = False,
    landed: Annotated[
        str, option("Output of land: compare its table with Kafka, too.", "--landed", metavar="OUTPUT")
    ] = "",
) -> Exit:
    """Prove that each committed message of a closed window is visible once, with Spark.

    It ends with 0: proven, 2: something is wrong, 3: not all can be known, 4: something must be corrected.
    """
    settings = AuditSettings(**given)
    settings.all_databases()  # before Spark starts, which takes a while
    configure_job_logs(settings)
    locks = (SPARK_LOCK, DELTA_LOCK) if landed else (SPARK_LOCK,)
    with spark_session(settings.name, settings.spark, locks) as spark:
        try:
            code = audit(spark, settings, quick=quick, landed=landed)
        except JAVA_ERRORS as error:
            fail(f"the audit failed: {reason(error)}", Exit.FAILED)
        except JVM_GONE:
            fail("the audit failed: Spark's Java process is gone, killed or out of memory", Exit.FAILED)
    return code
