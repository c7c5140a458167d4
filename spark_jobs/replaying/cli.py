"""`outbox replay`: send landed records again."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from outbox._service.exit_codes import Exit, fail, guarded
from outbox._service.logs import configure_logs
from outbox._service.output import PlainConsole, utc
from outbox.errors import ConfigurationError
from spark_jobs.replaying.job import Prepared, replay
from spark_jobs.replaying.lanes import PartitionBy
from spark_jobs.replaying.settings import ReplaySettings
from spark_jobs.runtime.errors import JobFailedError, reason
from spark_jobs.runtime.jvm import JAVA_ERRORS, JVM_GONE
from spark_jobs.runtime.session import DELTA_LOCK, spark_session
from spark_jobs.runtime.settings import SinkName

_LAST_MS = 250_000_000_000_000
"""Times of which Python knows the year."""

app: typer.Typer = typer.Typer(help="Send landed records again, each once for each replay, with Spark.")


@app.callback(invoke_without_command=True)
def run(
    replay_id: Annotated[
        str | None, typer.Option(help="Names the replay: what it has written, it never writes again.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="Output of land: the folder of the tables.")] = None,
    ids: Annotated[
        str | None, typer.Option(help="Message ids and transaction ids, separated by commas; @FILE reads them.")
    ] = None,
    where: Annotated[str | None, typer.Option(help="Condition in SQL over the columns of the table.")] = None,
    verdicts: Annotated[str | None, typer.Option(help="Verdicts of an audit, separated by commas.")] = None,
    findings: Annotated[str | None, typer.Option(help="Folder of that audit's report.")] = None,
    target: Annotated[str | None, typer.Option(help="Topic to write to. Default: each record's own.")] = None,
    partition_by: Annotated[PartitionBy | None, typer.Option(help="What chooses the partition. Default: key.")] = None,
    include_replays: Annotated[
        bool | None, typer.Option("--include-replays", help="Also what an earlier replay has sent, and was landed.")
    ] = None,
    dry_run: Annotated[
        bool | None, typer.Option("--dry-run", help="Show what would be written, and write nothing.")
    ] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    channel: Annotated[str | None, typer.Option(help="Channel whose ledger is kept. Default: outbox.")] = None,
    sink: Annotated[SinkName | None, typer.Option(help="How land wrote the table. Default: delta.")] = None,
    transaction_rows: Annotated[
        int | None, typer.Option(help="Most records in a Kafka transaction. Default: 10000.")
    ] = None,
) -> None:
    """Send landed records again. Everything can also be set by environment (OUTBOX_…) or by OUTBOX_CONFIG."""
    given: dict[str, Any] = {
        "replay_id": replay_id,
        "table": table,
        "where": where,
        "verdicts": verdicts,
        "findings": findings,
        "target": target,
        "partition_by": partition_by,
        "include_replays": include_replays,
        "dry_run": dry_run,
        "bootstrap_servers": bootstrap_servers,
        "channel": channel,
        "sink": sink,
        "transaction_rows": transaction_rows,
    }

    def send() -> None:
        given["ids"] = None if ids is None else _ids(ids)
        settings = ReplaySettings(**{name: value for name, value in given.items() if value is not None})
        terminal = configure_logs(settings.log_level, settings.log_format)
        logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells every call into the JVM
        locks = [DELTA_LOCK] if settings.sink is SinkName.DELTA else []
        with spark_session(settings.name, settings.spark, locks) as spark:
            try:
                prepared = replay(spark, settings, terminal)
            except JobFailedError as error:
                fail(str(error), Exit.FAILED)
            except JAVA_ERRORS as error:
                fail(f"the replay failed: {reason(error)}", Exit.FAILED)
            except JVM_GONE:
                fail("the replay failed: Spark's Java process is gone, killed or out of memory", Exit.FAILED)
        if settings.dry_run:
            show(prepared, settings)

    guarded(send)


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
    """Return a time for people; a producer may have said any."""
    return utc(ms) if abs(ms) <= _LAST_MS else f"{ms} ms"


def _ids(text: str) -> str:
    """Ids, or what the file holds that is named after an @, separated by commas or by white space."""
    if not text.startswith("@"):
        return text
    try:
        return ",".join(Path(text[1:]).read_text(encoding="utf-8").replace(",", " ").split())
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"the ids in {text[1:]} cannot be read: {error}") from error
