"""`python -m tests.torture --minutes 10`: torture, then reconcile; the report is kept in build/torture."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from examples.flights.digest import digest
from examples.flights.reconcile import Reconciliation, Seen, Told, departure_of, reconcile
from outbox.failpoints import VARIABLE
from outbox.protocol.half import user_headers
from outbox.testing import VisibleRecord, read_committed
from stack import Stack
from tests.harness import Service, Site, wait_until
from tests.torture.application import DDL

APPLICATIONS = 3
SERVICES = ("relay", "relay", "checker")
FAILPOINTS = {
    "relay": ("relay.producing", "relay.produced", "relay.flushed", "relay.offsets_sent", "relay.committed"),
    "checker": ("checker.fenced", "checker.decided", "checker.answered"),
    "application": ("outbox.half_acked", "outbox.sealed", "outbox.committed"),
}
SETTLE_SECONDS = 180.0
SESSION = {"OUTBOX_KAFKA": '{"session.timeout.ms": "6000", "heartbeat.interval.ms": "1000"}'}

console = Console(width=None if sys.stdout.isatty() else 100)


class Torture:
    """One run.

    Args:
        stack: The servers.
        site: Channel, tables and topics.
        seed: Of the faults.
    """

    def __init__(self, stack: Stack, site: Site, seed: int) -> None:
        self._stack = stack
        self._site = site
        self._random = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self._running: list[tuple[str, Service]] = []
        self._paused: list[tuple[float, Service]] = []

    def start(self, *, faults: bool = True) -> None:
        """Start what is not running."""
        self._running = [(kind, service) for kind, service in self._running if self._alive(kind, service)]
        wanted = Counter([*SERVICES, *["application"] * APPLICATIONS]) if faults else Counter(SERVICES)
        wanted.subtract(kind for kind, _ in self._running)
        for kind in wanted.elements():
            self._running.append((kind, self._start(kind, faults=faults)))

    def _alive(self, kind: str, service: Service) -> bool:
        if service.running:
            return True
        code = service.process.returncode
        self.faults[f"{kind} killed" if code == -signal.SIGKILL else f"{kind} ended with {code}"] += 1
        if code not in {-signal.SIGKILL, 0}:
            console.print(f"{kind} ended with {code}:\n{service.output()[-2000:]}", markup=False)
        return False

    def _start(self, kind: str, *, faults: bool) -> Service:
        failpoint = ""
        if faults and self._random.random() < 0.7:
            failpoint = f"{self._random.choice(FAILPOINTS[kind])}:{self._random.randint(1, 150)}"
        if kind != "application":
            return self._site.start(kind, failpoint=failpoint, extra=SESSION)
        log = Path(self._site.log_folder) / f"application-{len(self._site.services)}.log"
        command = [sys.executable, "-m", "tests.torture.application", self._site.name, str(self._random.random())[2:]]
        with log.open("wb") as output:
            environ = {**self._site.environment(), VARIABLE: failpoint}
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
        service = Service(process, log)
        self._site.services.append(service)
        return service

    def fault(self) -> None:
        """Do something cruel."""
        self._wake()
        faults: dict[Callable[[], None], int] = {
            self._kill: 12,
            self._pause_relay: 2,
            self._kill_postgres: 1,
            self._kill_broker: 1,
        }
        self._random.choices(list(faults), list(faults.values()))[0]()

    def _kill(self) -> None:
        _, service = self._random.choice(self._running)
        if service.running:
            service.process.kill()
            service.process.wait()

    def _pause_relay(self) -> None:
        """Longer than the session's timeout: another relay takes over, and this one wakes up as a zombie."""
        relays = [service for kind, service in self._running if kind == "relay" and service.running]
        if relays:
            service = self._random.choice(relays)
            service.process.send_signal(signal.SIGSTOP)
            self._paused.append((time.monotonic() + self._random.uniform(8, 12), service))
            self.faults["relay paused"] += 1

    def _wake(self, *, all_: bool = False) -> None:
        for until, service in list(self._paused):
            if all_ or time.monotonic() >= until:
                service.process.send_signal(signal.SIGCONT)
                self._paused.remove((until, service))

    def _kill_postgres(self) -> None:
        self._stack.postgres.kill()
        self._stack.postgres.start()
        self.faults["postgres killed"] += 1

    def _kill_broker(self) -> None:
        self._stack.kafka.kill()
        self._stack.kafka.start()
        self.faults["broker killed"] += 1

    def heal(self) -> None:
        """End the applications, wake what is paused, start the services without failpoints."""
        self._wake(all_=True)
        for _, service in self._running:
            if service.running:
                service.process.terminate()
                service.process.wait(60)
        self.start(faults=False)


def _told(site: Site) -> dict[str, Told]:
    with site.connect() as connection:
        rows = connection.execute(f"SELECT message_id, topic, digest FROM {site.name}_told").fetchall()
    return {id_: Told(topic, shape) for id_, topic, shape in rows}


def _seen(record: VisibleRecord) -> Seen:
    own = user_headers(record.headers)
    shape = digest(record.key, record.value, own)
    departure = departure_of(record.value)
    return Seen(record.message_id, record.topic, record.partition, record.offset, record.key, shape, departure)


def torture(minutes: float, seed: int) -> tuple[Reconciliation, dict[str, Any]]:
    """Torture for so many minutes; what was found, and the report."""
    with ExitStack() as cleanup:
        stack = cleanup.enter_context(Stack())
        site = cleanup.enter_context(Site(stack.bootstrap_servers, stack.postgres_url))
        site.create("a", "b", partitions=4)
        with site.connect() as connection:
            connection.execute(DDL.format(name=site.name))
        run = Torture(stack, site, seed)
        started = time.monotonic()
        while time.monotonic() - started < minutes * 60:
            run.start()
            time.sleep(run._random.uniform(0.5, 3))  # the pace of the faults
            run.fault()
            console.print(f"{time.monotonic() - started:6.0f} s  {dict(run.faults)}", markup=False)
        run.heal()
        wait_until(site.settled, SETTLE_SECONDS, site.logs)
        told = _told(site)
        result = reconcile(told, map(_seen, read_committed(site.kafka(), [site.topic("a"), site.topic("b")])))
    report = {
        "minutes": minutes,
        "seed": seed,
        "faults": dict(sorted(run.faults.items())),
        "messages": len(told),
        "visible": result.seen,
        "lost": len(result.lost),
        "doubled": len(result.doubled),
        "phantom": len(result.phantom),
        "out_of_order": len(result.out_of_order),
    }
    return result, report


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 1,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("build/torture/report.json"),
) -> None:
    """Kill everything at random, then reconcile; ends with 2 if anything is lost, doubled, phantom or out of order."""
    result, figures = torture(minutes, seed)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(figures, indent=2) + "\n")
    table = Table("figure", "value", title="torture")
    for name, value in figures.items():
        table.add_row(name, str(value))
    console.print(table)
    console.print(f"report: {report}")
    if not result.clean:
        raise SystemExit(2)


if __name__ == "__main__":
    typer.run(main)
