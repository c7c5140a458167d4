"""A stream of files into a sink for Kafka, killed again and again: each line must be on the topic once."""

import random
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from outbox._postgres.message_table import MessageTable
from outbox._postgres.sink_tables import SinkTables
from tests.land_torture.invariants import Violation
from tests.land_torture.job import Job
from tests.land_torture.run import Run, Say
from tests.land_torture.traffic import beside
from tests.support.harness import Site
from tests.support.message_rows import relay_settings, wait_empty

PLAIN = "kafka"
"""Spark's own sink."""

_PAUSE_SECONDS = 2.0
_MOST_LINES = 60
_SETTLED_SECONDS = 120.0


class Files:
    """Writes files while it is on; the lines of each are a batch while the job is killed."""

    aborted = lingering = 0

    def __init__(self, folder: Path, seed: int) -> None:
        self.lines: list[str] = []
        self._folder = folder
        self._chance = random.Random(seed)
        folder.mkdir()

    @property
    def committed(self) -> int:
        return len(self.lines)

    def on(self) -> AbstractContextManager[None]:
        """Write while the block lasts."""
        return beside(self._run)

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(_PAUSE_SECONDS):
            name = uuid.uuid4().hex
            lines = [f"{number % 5}-{name}-{number}" for number in range(self._chance.randint(1, _MOST_LINES))]
            hidden = self._folder / f".{name}"
            hidden.write_text("\n".join(lines))
            hidden.rename(self._folder / name)
            self.lines += lines


class SinkRun(Run):
    """One run with a sink for Kafka; a relay delivers what the format outbox publishes."""

    def __init__(self, site: Site, sink: str, seed: int, folder: Path, say: Say) -> None:
        site.create("orders")
        site.create_tables(MessageTable, SinkTables)
        topic, place = site.topic("orders"), site.bootstrap_servers if sink == PLAIN else site.postgres_url
        command = [sys.executable, "-m", "tests.support.sink_job", str(folder), topic, sink, place, site.name]
        super().__init__(
            site, sink, seed, Job(site, command, folder, {"OUTBOX_AVAILABLE_NOW": ""}), Files(folder / "in", seed), say
        )
        if sink != PLAIN:
            site.relay(extra=relay_settings(site))

    def _grow(self) -> None:
        """A sink chooses no partition."""

    def _check(self) -> None:
        if self.result.sink != PLAIN:
            wait_empty(self._site, _SETTLED_SECONDS)
        written = self._traffic.lines
        seen = Counter((record.value or b"").decode() for record in self._site.read("orders"))
        self.result.violations += [
            *_found("no record is lost", set(written) - set(seen)),
            *_found("no record is there twice", (line for line, times in seen.items() if times > 1)),
            *_found("no record is made up", set(seen) - set(written)),
        ]
        self._note(len(seen))


def _found(rule: str, lines: Iterable[str]) -> list[Violation]:
    wrong = sorted(lines)
    return [Violation(rule, f"{len(wrong)} records: {', '.join(wrong[:5])}")] if wrong else []
