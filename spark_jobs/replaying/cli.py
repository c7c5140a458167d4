"""`outbox replay`: send landed records again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from outbox._cli.setting_options import layers, setting_options
from outbox._service.exit_codes import Exit, fail
from outbox._service.output import PlainConsole, utc
from outbox.errors import ConfigurationError
from spark_jobs.replaying.job import Prepared, replay
from spark_jobs.replaying.settings import ReplaySettings
from spark_jobs.runtime.errors import JobFailedError, reason
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE
from spark_jobs.runtime.session import DELTA_LOCK, configure_job_logs, spark_session

_LAST_MS = 250_000_000_000_000
"""Times whose year Python can print."""

app: typer.Typer = typer.Typer(
    epilog=layers(ReplaySettings), help="Send landed records again, each once for each replay, with Spark."
)


@app.callback(invoke_without_command=True)
@setting_options(ReplaySettings)
def run(given: dict[str, Any]) -> None:
    """Send landed records again."""
    if "ids" in given:
        given["ids"] = _ids(given["ids"])
    settings = ReplaySettings(**given)
    configure_job_logs(settings)
    with spark_session(settings.name, settings.spark, [DELTA_LOCK]) as spark:
        try:
            prepared = replay(spark, settings)
        except JobFailedError as error:
            fail(str(error), Exit.FAILED)
        except JAVA_ERRORS as error:
            fail(f"the replay failed: {reason(error)}", Exit.FAILED)
        except JVM_GONE:
            fail("the replay failed: Spark's Java process is gone, killed or out of memory", Exit.FAILED)
    if settings.dry_run:
        show(prepared, settings)


def show(prepared: Prepared, settings: ReplaySettings) -> None:
    """Print what a dry run has found."""
    title = f"replay {settings.replay_id}: nothing is written, this is what would be"
    table = Table("to", "from", "offsets", "records", "bytes", "oldest", "newest", title=title, show_footer=True)
    for part in prepared.parts:
        table.add_row(
            str(part.lane),
            f"{part.topic}/{part.partition}",
            f"{part.first}..{part.last}",
            f"{part.rows:,}",
            f"{part.size:,}",
            _time(part.oldest),
            _time(part.newest),
        )
    table.columns[0].footer = f"{len(prepared.plan.lanes)} partitions"
    table.columns[3].footer = f"{prepared.plan.rows:,}"
    table.columns[4].footer = f"{sum(part.size for part in prepared.parts):,}"
    table.columns[5].footer = f"{prepared.entries.rows:,} written before"
    PlainConsole().print(table)


def _time(ms: int) -> str:
    """Return a time for people; a producer may have given any."""
    return utc(ms) if abs(ms) <= _LAST_MS else f"{ms} ms"


def _ids(text: str) -> str:
    """Ids, or what the file holds that is named after an @, separated by commas or by white space."""
    if not text.startswith("@"):
        return text
    try:
        return ",".join(Path(text[1:]).read_text(encoding="utf-8").replace(",", " ").split())
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"The file of ids, {text[1:]}, cannot be read: {error}. Correct its name or its rights."
        ) from error
