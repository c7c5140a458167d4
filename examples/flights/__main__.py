"""`python -m examples.flights`: the demo, on servers of its own or on those that the environment names."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from examples.flights import places
from examples.flights.application import DEPARTURES, TOPICS, make_engine
from examples.flights.auditing import keep_report, load_window
from examples.flights.certificates import Security
from examples.flights.chart import draw_chart
from examples.flights.diary import diaries_of
from examples.flights.kafka_outage import KafkaOutage, load_span
from examples.flights.kills import Kill, load_kills
from examples.flights.lake import landed_rows, look
from examples.flights.logins import SOURCE, Environments, make_logins
from examples.flights.modes import Mode
from examples.flights.printing import console, say, show
from examples.flights.publishing import publish_flights, wait_until
from examples.flights.reconcile import reconcile
from examples.flights.side_by_side import Activity, Messages, figures_of, ways_of
from examples.flights.summary import Summary
from examples.flights.watching import show_console
from outbox import TableNames
from outbox._kafka.channel import create_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.dsn import connect_dsn
from outbox._postgres.message_table import MessageTable
from outbox._rules.role_rights import Role
from outbox._service.exit_codes import Exit, guarded
from outbox.protocol.names import Channel
from stack import Stack
from stack.kafka import JVM_OPTIONS

CLOSED_SECONDS = 120.0
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that starts soon and is not there for long."""

SETTINGS = {
    "OUTBOX_PROFILE": "development",
    "OUTBOX_TRANSACTION_TIMEOUT_MS": "2000",
    "OUTBOX_CHECK_INTERVAL_MS": "1000",
    "OUTBOX_CHECK_INTERVAL_MAX_MS": "4000",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Rows = Annotated[str, typer.Option(help="Rows of input: a number, or all.")]
Folder = Annotated[Path, typer.Option(help="Where results go.")]
Secure = Annotated[
    bool, typer.Option("--secure", help="Encrypt all connections, and give each role a user of Kafka with its rights.")
]


@app.callback(invoke_without_command=True)
def demo(
    context: typer.Context, rows: Rows = "25000", folder: Folder = Path("build/demo"), *, secure: Secure = False
) -> None:
    """Run everything: servers, relay, checker, application, kills, an outage, Spark, audit, reconciliation."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended
    if context.invoked_subcommand is None:
        guarded(lambda: _everything(rows, folder, secure=secure))


@app.command()
def publish(rows: Rows = "25000", folder: Folder = Path("build/demo")) -> None:
    """Run the application, with its kills, on the servers that the environment names, until all is settled."""
    guarded(lambda: _publish(rows, folder, Environments(os.environ)))


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


def _everything(rows: str, folder: Path, *, secure: bool) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as cleanup:
        say("starting Kafka and Postgres")
        os.environ.setdefault(JVM_OPTIONS, SHORT_RUN)
        stack = cleanup.enter_context(Stack(security=Security if secure else None))
        servers = {"OUTBOX_BOOTSTRAP_SERVERS": stack.bootstrap_servers, "OUTBOX_POSTGRES_URL": stack.postgres_url}
        environ = {**os.environ, **SETTINGS, **servers}
        say(f"Kafka on {stack.bootstrap_servers}; creating channel, tables and topics")
        create_channel(_kafka(environ), Channel(), replication=1)
        with connect_dsn(stack.postgres_url, autocommit=True) as connection:
            CallbackTable(TableNames()).create(connection)
            MessageTable(TableNames()).create(connection)
        environments = Environments(environ, _logins(stack) if secure else None)
        tables = {"OUTBOX_TABLES": json.dumps({SOURCE: {"dsn": stack.postgres_url}})}
        cleanup.enter_context(_service("relay", folder, {**environments.of(Role.RELAY), **tables}))
        cleanup.enter_context(_service("checker", folder, environments.of(Role.CHECKER)))
        _publish(rows, folder, environments, KafkaOutage(stack.kafka, say))
        _land(folder, environments.of(Role.LAND))
        audited = _audit(folder, environments.of(Role.AUDIT))
        _reconcile(folder, environ)
        _end_with(audited)
        show_console(folder, {**environments.of(Role.VIEWER), **tables})


def _logins(stack: Stack) -> dict[Role, dict[str, str]]:
    logins = make_logins(stack)
    say(f"SASL_SSL on {stack.kafka.secured_servers}; {len(logins)} roles have users with the printed rights")
    return logins


@contextlib.contextmanager
def _service(name: str, folder: Path, environ: Mapping[str, str]) -> Iterator[None]:
    """Relay or checker as a process of its own; its log is kept."""
    say(f"starting the {name}")
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "outbox", name], env=dict(environ), stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _publish(rows: str, folder: Path, environments: Environments, outage: KafkaOutage | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    publish_flights(rows, folder, environments, outage)


def _land(folder: Path, environ: Mapping[str, str]) -> None:
    say("Spark lands the topics")
    output = ["--output", str(folder / "landed"), "--checkpoint", str(folder / "checkpoint")]
    command = [sys.executable, "-m", "outbox", "land", "--topics", ",".join(TOPICS), *output, "--available-now"]
    command += ["--current", DEPARTURES]
    if subprocess.run(command, env={**environ, "OUTBOX_LOG_FORMAT": "text"}, check=False).returncode:
        raise SystemExit(Exit.FAILED)


def _audit(folder: Path, environ: Mapping[str, str]) -> int:
    """Its exit code: 0 if each message is proven to be where it belongs."""
    window = load_window(folder / "window.json")
    wait_until(window.is_closed, CLOSED_SECONDS, "the window is not closed")
    say("Spark audits what became of each message")
    command = [sys.executable, "-m", "outbox", "audit", *window.arguments(), "--output", str(folder / "audit")]
    return subprocess.run(command, env={**environ, "OUTBOX_LOG_FORMAT": "text"}, check=False).returncode


def _end_with(code: int) -> None:
    if code:
        raise SystemExit(code)


def _reconcile(folder: Path, environ: Mapping[str, str]) -> None:
    say("reconciling Postgres, the topics and the landed table")
    engine = make_engine(environ["OUTBOX_POSTGRES_URL"])
    told, kills = places.told_in(engine), load_kills(folder / "kills.json")
    records, landed = places.visible_records(_kafka(environ)), landed_rows(folder / "landed")
    visible_found, landed_found = reconcile(told, places.seen_in(records)), reconcile(told, places.landed_in(landed))
    outage = load_span(folder / "outage.json")
    messages = Messages(told, ways_of(records), (visible_found, landed_found))
    committed = places.committed_in(engine)
    summary = Summary(
        len(told),
        {mode: figures_of(mode, committed[mode], _activity(folder, mode, kills), messages, outage) for mode in Mode},
        outage,
        places.decided_by_checker(_kafka(environ), Channel()),
        kills,
        places.committed_attempts(engine, [kill.attempt for kill in kills]),
        visible_found,
        landed_found,
    )
    (folder / "summary.json").write_text(json.dumps(summary.as_json(), indent=2) + "\n")
    picture = folder / "departures.png"
    draw_chart(landed, picture)
    show(summary)
    lake = look(folder / "landed")
    console.print(lake.words())
    console.print(f"chart: {picture}\nfigures: {folder / 'summary.json'}")
    for wrong in (found := lake.wrong(records)):
        console.print(f"[red]{wrong}[/]")
    if found or not summary.clean:
        raise SystemExit(Exit.FINDINGS)


def _activity(folder: Path, mode: Mode, kills: list[Kill]) -> Activity:
    diaries = diaries_of(folder, mode)
    return Activity(
        rolled_back=sum(len(diary.rolled_back()) for diary in diaries),
        commit_times=[time for diary in diaries for time in diary.commit_times()],
        refused=sum((diary.refusals() for diary in diaries), Counter()),
        killed=sum(kill.mode is mode for kill in kills),
    )


def _kafka(environ: Mapping[str, str]) -> dict[str, str]:
    return {"bootstrap.servers": environ["OUTBOX_BOOTSTRAP_SERVERS"]}


if __name__ == "__main__":
    app()
