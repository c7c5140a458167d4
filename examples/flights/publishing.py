"""The application's part of the demo: its processes publish, are killed, and see Kafka stop, until all is settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import Engine

from examples.flights import places
from examples.flights.application import TOPICS, make_engine, metadata
from examples.flights.auditing import Window
from examples.flights.kafka_outage import KafkaOutage
from examples.flights.kills import Application
from examples.flights.logins import Environments
from examples.flights.modes import Mode, part_of
from examples.flights.plan import make_plan
from examples.flights.printing import console, say
from outbox._kafka.admin import admin_client
from outbox._rules.role_rights import Role
from outbox.errors import ConfigurationError
from outbox.protocol.names import Channel
from outbox.testing import settled

OUTAGE_AFTER = 0.4
"""Share of the transactions after which Kafka is stopped; what is left is work for the time after it, too."""

PRINT_SECONDS = 5.0
"""Between two lines of progress where there is no terminal."""

SETTLED_SECONDS = 120.0


def publish_flights(rows: str, folder: Path, environments: Environments, outage: KafkaOutage | None) -> None:
    """Run the application until its plan is done and everything is settled.

    Args:
        rows: Rows of input, or `all`.
        environments: Settings, with the servers: of the demo, and of the application.
        outage: How Kafka is stopped and started; None: it is not.
    """
    engine = make_engine(environments.own["OUTBOX_POSTGRES_URL"])
    metadata.create_all(engine)
    kafka = {"bootstrap.servers": environments.own["OUTBOX_BOOTSTRAP_SERVERS"]}
    _create_topics(kafka)
    window = Window.begin()
    plan = make_plan(None if rows == "all" else int(rows))
    say(f"{sum(len(transaction.flights) for transaction in plan):,} flights in {len(plan):,} local transactions")
    transactions = {mode: len(part_of(plan, mode)) for mode in Mode}
    application = Application(rows, transactions, folder, environments.of(Role.APPLICATION))
    try:
        _Watch(application, engine, outage).run()
        span = outage.end() if outage is not None else None
    finally:
        application.stop()
    application.save(folder / "kills.json")
    if span is not None:
        span.save(folder / "outage.json")
    killed = len(application.kills)
    say(f"the application is done; {killed} of its processes were killed; waiting until all is settled")
    wait_until(lambda: _is_settled(engine, kafka), SETTLED_SECONDS, "the relay has not settled everything")
    window.end().save(folder / "window.json")


def wait_until(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Wait for a condition; end the program with a sentence if it does not become true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"after {seconds:.0f} s {otherwise}")
        time.sleep(0.25)


def _create_topics(kafka: Mapping[str, str]) -> None:
    admin = admin_client(kafka)
    known = admin.list_topics(timeout=10).topics
    # With the broker's time on them, records tell the audit how long they took.
    config = {"message.timestamp.type": "LogAppendTime"}
    missing = [name for name in TOPICS if name not in known]
    topics = [NewTopic(name, num_partitions=6, replication_factor=-1, config=config) for name in missing]
    for future in admin.create_topics(topics).values() if topics else ():
        future.result(30)


def _is_settled(engine: Engine, kafka: Mapping[str, str]) -> bool:
    try:
        return settled(kafka, Channel()) and not places.rows_wait(engine)
    except ConfigurationError:  # Kafka does not answer yet
        return False


class _Watch:
    """Looks after the application, shows its progress, and begins the outage in the middle.

    Args:
        outage: How Kafka is stopped and started; None: it is not.
    """

    def __init__(self, application: Application, engine: Engine, outage: KafkaOutage | None) -> None:
        self._application = application
        self._engine = engine
        self._outage = outage
        self._total = sum(application.transactions.values())
        self._printed = time.monotonic()
        columns = (TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        totals = application.transactions.items()
        self._bars = {mode: self._progress.add_task(f"{mode} mode", total=total) for mode, total in totals}
        self._killed = self._progress.add_task("processes killed")

    def run(self) -> None:
        """Watch until all processes have done their share."""
        with self._progress:
            at_work = True
            while at_work:
                at_work = self._application.watch()
                finished = self._finished()
                self._show(finished)
                if self._outage is not None and sum(finished.values()) >= self._total * OUTAGE_AFTER:
                    self._outage.begin()
                time.sleep(0.5)

    def _finished(self) -> dict[Mode, int]:
        """Return how many transactions committed, or were rolled back on purpose, by mode."""
        committed, rolled_back = places.committed_in(self._engine), self._application.rolled_back()
        return {mode: committed[mode] + rolled_back[mode] for mode in Mode}

    def _show(self, finished: Mapping[Mode, int]) -> None:
        killed = len(self._application.kills)
        for mode, bar in self._bars.items():
            self._progress.update(bar, completed=finished[mode])
        self._progress.update(self._killed, completed=killed)
        if not console.is_terminal and time.monotonic() - self._printed > PRINT_SECONDS:
            self._printed = time.monotonic()
            modes = ", ".join(f"{mode} {count:,}" for mode, count in finished.items())
            say(f"{sum(finished.values()):,} of {self._total:,} transactions ({modes}), {killed} processes killed")
