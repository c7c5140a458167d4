"""`python -m examples.flights`: the demo, on servers of its own or on those that the environment names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from examples.flights import places
from examples.flights.application import GROUP, TOPICS, flight_table, make_engine, metadata
from examples.flights.auditing import Window, keep_report, load_window
from examples.flights.chart import draw_chart
from examples.flights.kills import Application, load_kills
from examples.flights.plan import make_plan
from examples.flights.reconcile import Reconciliation, reconcile
from examples.flights.summary import Summary
from outbox import TableNames
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import create_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connect_dsn
from outbox._service.exit_codes import Exit, guarded
from outbox.protocol.names import Channel
from outbox.testing import settled
from stack import Stack

QUIET_SECONDS = 120.0
SETTINGS = {
    "OUTBOX_PROFILE": "development",
    "OUTBOX_TRANSACTION_TIMEOUT_MS": "2000",
    "OUTBOX_CHECK_INTERVAL_MS": "1000",
    "OUTBOX_CHECK_INTERVAL_MAX_MS": "4000",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(width=None if sys.stdout.isatty() else 100)
Rows = Annotated[str, typer.Option(help="Rows of input: a number, or all.")]
Folder = Annotated[Path, typer.Option(help="Where results go.")]


@app.callback(invoke_without_command=True)
def demo(context: typer.Context, rows: Rows = "25000", folder: Folder = Path("build/demo")) -> None:
    """Run everything: servers, relay, checker, application, kills, Spark, audit, reconciliation."""
    if context.invoked_subcommand is None:
        guarded(lambda: _everything(rows, folder))


@app.command()
def publish(rows: Rows = "25000", folder: Folder = Path("build/demo")) -> None:
    """Run the application, with its kills, on the servers that the environment names, until all is settled."""
    guarded(lambda: _publish(rows, folder, os.environ))


@app.command("audit")
def audit_command(folder: Folder = Path("build/demo")) -> None:
    """Audit what was published: a verdict for each message; ends as `outbox audit` does."""
    guarded(lambda: _end_with(_audit(folder, os.environ)))


@app.command()
def keep(folder: Folder = Path("build/demo"), documents: Folder = Path("docs/audit")) -> None:
    """Keep the audit's report of the last run, and its charts, among the documents."""
    guarded(lambda: keep_report(folder / "audit", documents))


@app.command("reconcile")
def reconcile_command(folder: Folder = Path("build/demo")) -> None:
    """Reconcile Postgres, the topics and the landed table."""
    guarded(lambda: _reconcile(folder, os.environ))


def _everything(rows: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as cleanup:
        _say("starting Kafka and Postgres")
        stack = cleanup.enter_context(Stack())
        servers = {"OUTBOX_BOOTSTRAP_SERVERS": stack.bootstrap_servers, "OUTBOX_POSTGRES_URL": stack.postgres_url}
        environ = {**os.environ, **SETTINGS, **servers}
        _say(f"Kafka on {stack.bootstrap_servers}; creating channel, callback table and topics")
        create_channel(_kafka(environ), Channel(), replication=1)
        with connect_dsn(stack.postgres_url, autocommit=True) as connection:
            CallbackTable(TableNames()).create(connection)
        for service in ("relay", "checker"):
            cleanup.enter_context(_service(service, folder, environ))
        _publish(rows, folder, environ)
        _land(folder, environ)
        audited = _audit(folder, environ)
        _reconcile(folder, environ)
        _end_with(audited)


@contextlib.contextmanager
def _service(name: str, folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Relay or checker as a process of its own; its log is kept."""
    _say(f"starting the {name}")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "outbox", name], env=dict(environ), stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _publish(rows: str, folder: Path, environ: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    engine = make_engine(environ["OUTBOX_POSTGRES_URL"])
    metadata.create_all(engine)
    _create_topics(environ)
    window = Window.begin()
    plan = make_plan(None if rows == "all" else int(rows))
    _say(f"{sum(len(transaction.flights) for transaction in plan):,} flights in {len(plan):,} local transactions")
    application = Application(rows, len(plan), folder, {**environ, "OUTBOX_GROUP": GROUP})
    try:
        with _progress() as progress:
            _watch(application, engine, len(plan), progress)
    finally:
        application.stop()
    application.save(folder / "kills.json")
    (folder / "rolled_back.json").write_text(json.dumps(application.rolled_back()))
    _say(
        f"the application is done; {len(application.kills)} of its processes were killed; waiting until all is settled"
    )
    _wait(lambda: settled(_kafka(environ), Channel()), QUIET_SECONDS, "the relay has not settled everything")
    window.end().save(folder / "window.json")


def _create_topics(environ: Mapping[str, str]) -> None:
    admin = admin_client(_kafka(environ))
    known = admin.list_topics(timeout=10).topics
    # With the broker's time on them, records tell the audit how long they took.
    config = {"message.timestamp.type": "LogAppendTime"}
    missing = [name for name in TOPICS if name not in known]
    topics = [NewTopic(name, num_partitions=6, replication_factor=-1, config=config) for name in missing]
    for future in admin.create_topics(topics).values() if topics else ():
        future.result(30)


def _watch(application: Application, engine: Engine, transactions: int, progress: Progress) -> None:
    committed = progress.add_task("committed or rolled back", total=transactions)
    killed = progress.add_task("processes killed")
    printed = time.monotonic()
    while application.watch():
        finished = _committed(engine) + application.rolled_back()
        progress.update(committed, completed=finished)
        progress.update(killed, completed=len(application.kills))
        if not console.is_terminal and time.monotonic() - printed > 5:  # noqa: PLR2004 - a line every 5 s is enough
            printed = time.monotonic()
            _say(f"{finished:,} of {transactions:,} transactions, {len(application.kills)} processes killed")
        time.sleep(0.5)
    progress.update(committed, completed=_committed(engine) + application.rolled_back())


def _progress() -> Progress:
    columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _committed(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count(flight_table.c.transaction.distinct()))) or 0


def _land(folder: Path, environ: Mapping[str, str]) -> None:
    _say("Spark lands the topics")
    output = ["--output", str(folder / "landed"), "--checkpoint", str(folder / "checkpoint")]
    command = [sys.executable, "-m", "outbox", "land", "--topics", ",".join(TOPICS), *output, "--available-now"]
    if subprocess.run(command, env={**environ, "OUTBOX_LOG_FORMAT": "text"}, check=False).returncode:
        raise SystemExit(Exit.FAILED)


def _audit(folder: Path, environ: Mapping[str, str]) -> int:
    """Its exit code: 0 if each message is proven to be where it belongs."""
    window = load_window(folder / "window.json")
    _wait(window.is_closed, QUIET_SECONDS, "the window is not closed")
    _say("Spark audits what became of each message")
    command = [sys.executable, "-m", "outbox", "audit", *window.arguments(), "--output", str(folder / "audit")]
    return subprocess.run(command, env={**environ, "OUTBOX_LOG_FORMAT": "text"}, check=False).returncode


def _end_with(code: int) -> None:
    if code:
        raise SystemExit(code)


def _reconcile(folder: Path, environ: Mapping[str, str]) -> None:
    _say("reconciling Postgres, the topics and the landed table")
    engine = make_engine(environ["OUTBOX_POSTGRES_URL"])
    told = places.told_in(engine)
    kills = load_kills(folder / "kills.json")
    landed = places.landed_rows(folder / "landed")
    summary = Summary(
        len(told),
        _committed(engine),
        json.loads((folder / "rolled_back.json").read_text()),
        places.decided_by_checker(_kafka(environ), Channel()),
        kills,
        places.states(environ["OUTBOX_POSTGRES_URL"], [kill.transaction_id for kill in kills]),
        reconcile(told, places.visible_on(_kafka(environ))),
        reconcile(told, places.landed_in(landed)),
    )
    (folder / "summary.json").write_text(json.dumps(summary.as_json(), indent=2) + "\n")
    picture = folder / "departures.png"
    draw_chart(landed, picture)
    _show(summary)
    console.print(f"chart: {picture}\nfigures: {folder / 'summary.json'}")
    if not summary.clean:
        raise SystemExit(Exit.FINDINGS)


def _show(summary: Summary) -> None:
    table = Table("place", "messages", "lost", "duplicated", "phantom", "out of order", title="reconciliation")
    table.add_row("Postgres (truth)", f"{summary.told:,}", "", "", "", "")
    table.add_row("real topics, read_committed", *_cells(summary.visible))
    table.add_row("landed by Spark", *_cells(summary.landed))
    console.print(table)
    kills = Table("killed", "times", "outcome", title="application processes killed")
    for step, outcomes in summary.kills_by_step().items():
        words = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if outcome != "kills")
        kills.add_row(step, str(outcomes["kills"]), words)
    console.print(kills)
    decided = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.decided.items()))
    console.print(
        f"{summary.committed:,} transactions committed, {summary.rolled_back:,} rolled back; "
        f"{summary.decided.total()} decided by check-back ({decided})"
    )


def _cells(place: Reconciliation) -> list[str]:
    counts = [len(place.lost), len(place.doubled), len(place.phantom), len(place.out_of_order)]
    return [f"{place.seen:,}", *(f"[{'red' if count else 'green'}]{count}[/]" for count in counts)]


def _kafka(environ: Mapping[str, str]) -> dict[str, str]:
    return {"bootstrap.servers": environ["OUTBOX_BOOTSTRAP_SERVERS"]}


def _wait(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"after {seconds:.0f} s {otherwise}")
        time.sleep(0.25)


def _say(text: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}")


if __name__ == "__main__":
    app()
