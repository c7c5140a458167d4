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
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine

from examples.flights import places
from examples.flights.application import TOPICS, make_engine, metadata
from examples.flights.auditing import Window, keep_report, load_window
from examples.flights.chart import draw_chart
from examples.flights.diary import diaries_of
from examples.flights.kafka_outage import KafkaOutage, load_span
from examples.flights.kills import Application, Kill, load_kills
from examples.flights.modes import Mode, part_of
from examples.flights.plan import PlannedTransaction, make_plan
from examples.flights.printing import show
from examples.flights.reconcile import reconcile
from examples.flights.side_by_side import ModeFigures, Ways, figures_of, ways_of
from examples.flights.summary import Summary
from outbox import TableNames
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import create_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connect_dsn
from outbox._postgres.message_table import MessageTable
from outbox._service.exit_codes import Exit, guarded
from outbox.protocol.names import Channel
from outbox.testing import settled
from stack import Stack

QUIET_SECONDS = 120.0
OUTAGE_AFTER = 1 / 3
"""Share of the transactions after which Kafka is stopped; what is left is work for the time after it, too."""

PRINT_SECONDS = 5.0
"""Between two lines of progress where there is no terminal."""

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
    """Run everything: servers, relay, checker, application, kills, an outage, Spark, audit, reconciliation."""
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
        _say(f"Kafka on {stack.bootstrap_servers}; creating channel, tables and topics")
        create_channel(_kafka(environ), Channel(), replication=1)
        with connect_dsn(stack.postgres_url, autocommit=True) as connection:
            CallbackTable(TableNames()).create(connection)
            MessageTable(TableNames()).create(connection)
        tables = {"OUTBOX_TABLES": json.dumps({"flights": {"dsn": stack.postgres_url}})}
        cleanup.enter_context(_service("relay", folder, {**environ, **tables}))
        cleanup.enter_context(_service("checker", folder, environ))
        _publish(rows, folder, environ, KafkaOutage(stack.kafka, _say))
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


def _publish(rows: str, folder: Path, environ: Mapping[str, str], outage: KafkaOutage | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    engine = make_engine(environ["OUTBOX_POSTGRES_URL"])
    metadata.create_all(engine)
    _create_topics(environ)
    window = Window.begin()
    plan = make_plan(None if rows == "all" else int(rows))
    _say(f"{sum(len(transaction.flights) for transaction in plan):,} flights in {len(plan):,} local transactions")
    _run_application(rows, plan, folder, environ, outage)
    _wait(lambda: _is_settled(engine, environ), QUIET_SECONDS, "the relay has not settled everything")
    window.end().save(folder / "window.json")


def _run_application(
    rows: str, plan: list[PlannedTransaction], folder: Path, environ: Mapping[str, str], outage: KafkaOutage | None
) -> None:
    parts = {mode: len(part_of(plan, mode)) for mode in Mode}
    application = Application(rows, parts, folder, environ)
    try:
        with _progress() as progress:
            _watch(application, make_engine(environ["OUTBOX_POSTGRES_URL"]), parts, progress, outage)
        if outage is not None:
            outage.end().save(folder / "outage.json")
    finally:
        application.stop()
    application.save(folder / "kills.json")
    _say(
        f"the application is done; {len(application.kills)} of its processes were killed; waiting until all is settled"
    )


def _is_settled(engine: Engine, environ: Mapping[str, str]) -> bool:
    try:
        return settled(_kafka(environ), Channel()) and not places.rows_wait(engine)
    except KafkaException:  # after an outage Kafka holds offsets back until a transaction that was open is ended
        return False


def _create_topics(environ: Mapping[str, str]) -> None:
    admin = admin_client(_kafka(environ))
    known = admin.list_topics(timeout=10).topics
    # With the broker's time on them, records tell the audit how long they took.
    config = {"message.timestamp.type": "LogAppendTime"}
    missing = [name for name in TOPICS if name not in known]
    topics = [NewTopic(name, num_partitions=6, replication_factor=-1, config=config) for name in missing]
    for future in admin.create_topics(topics).values() if topics else ():
        future.result(30)


def _watch(
    application: Application,
    engine: Engine,
    parts: Mapping[Mode, int],
    progress: Progress,
    outage: KafkaOutage | None,
) -> None:
    bars = {mode: progress.add_task(f"{mode} mode", total=total) for mode, total in parts.items()}
    killed = progress.add_task("processes killed")
    total, printed = sum(parts.values()), time.monotonic()
    at_work = True
    while at_work:
        at_work = application.watch()
        finished = _finished(application, engine)
        for mode, bar in bars.items():
            progress.update(bar, completed=finished[mode])
        progress.update(killed, completed=len(application.kills))
        if not console.is_terminal and time.monotonic() - printed > PRINT_SECONDS:
            printed = time.monotonic()
            modes = ", ".join(f"{mode} {count:,}" for mode, count in finished.items())
            killed_so_far = len(application.kills)
            _say(f"{sum(finished.values()):,} of {total:,} transactions ({modes}), {killed_so_far} processes killed")
        if outage is not None and sum(finished.values()) >= total * OUTAGE_AFTER:
            outage.begin()
        time.sleep(0.5)


def _finished(application: Application, engine: Engine) -> dict[Mode, int]:
    """Transactions that committed, or were rolled back on purpose, by mode."""
    committed, rolled_back = places.committed_in(engine), application.rolled_back()
    return {mode: committed[mode] + rolled_back[mode] for mode in Mode}


def _progress() -> Progress:
    columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


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
    visible = places.visible_records(_kafka(environ))
    summary = Summary(
        len(told),
        _modes(folder, engine, kills, ways_of(visible)),
        load_span(folder / "outage.json"),
        places.decided_by_checker(_kafka(environ), Channel()),
        kills,
        places.committed_attempts(engine, [kill.attempt for kill in kills]),
        reconcile(told, places.seen_in(visible)),
        reconcile(told, places.landed_in(landed)),
    )
    (folder / "summary.json").write_text(json.dumps(summary.as_json(), indent=2) + "\n")
    picture = folder / "departures.png"
    draw_chart(landed, picture)
    show(summary, console)
    console.print(f"chart: {picture}\nfigures: {folder / 'summary.json'}")
    if not summary.clean:
        raise SystemExit(Exit.FINDINGS)


def _modes(folder: Path, engine: Engine, kills: list[Kill], ways: Ways) -> dict[Mode, ModeFigures]:
    committed, outage = places.committed_in(engine), load_span(folder / "outage.json")
    return {
        mode: figures_of(
            mode,
            committed[mode],
            sum(kill.mode is mode for kill in kills),
            diaries_of(folder, mode),
            ways,
            outage,
        )
        for mode in Mode
    }


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
