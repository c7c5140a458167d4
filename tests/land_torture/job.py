"""The job under torture: it is started, killed at a point, and run to its end."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._service.exit_codes import Exit
from tests.land_torture.points import CHECKPOINT, COMMITS, LANDED, TABLE, Kind, Point
from tests.support.harness import Site, wait_until
from tests.support.spark import SETTINGS

OFFSETS_AT_ONCE = 1_000
"""Of a batch, so that there are many to be killed in."""

OFFSETS_AT_THE_END = 20_000
"""Of a batch while nothing is killed, and what was not landed meanwhile is."""

MOST_HITS = 2
"""A failpoint kills when it is passed for the first or the second time."""

_LOOK_SECONDS = 0.001
_RUNNING_SECONDS = 2.0
_STARTING_SECONDS = 10.0
_RUN_SECONDS = 600.0
_DEAD_SECONDS = 120.0
_MARK = "spark.outbox.torture"
_SHOWN = 3_000


class UnexpectedEndError(AssertionError):
    """The job ended as it should not, or did not end; with what it said last."""


class Job:
    """A job with a folder of its own. `site`: its name marks the job's Java process."""

    def __init__(self, site: Site, command: Sequence[str], folder: Path, settings: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self.folder = folder  # for table, checkpoint and log; it must not exist yet
        self.table = folder / TABLE
        self.log = folder / "job.log"
        self._mark = f"{_MARK}={site.name}"
        self._command = command
        spark = json.dumps({**SETTINGS, _MARK: site.name})
        self._environment = {**os.environ, **settings, "OUTBOX_SPARK": spark}

    @classmethod
    def landing(cls, site: Site, topics: Sequence[str], folder: Path, *, naive: bool) -> Self:
        settings = {
            "OUTBOX_BOOTSTRAP_SERVERS": site.bootstrap_servers,
            "OUTBOX_TOPICS": ",".join(topics),
            "OUTBOX_OUTPUT": str(folder / TABLE),
            "OUTBOX_CHECKPOINT": str(folder / CHECKPOINT),
            "OUTBOX_CURRENT": ",".join(topics),
            "OUTBOX_MAX_OFFSETS_PER_TRIGGER": str(OFFSETS_AT_ONCE),
            "OUTBOX_TRIGGER_SECONDS": "0",
            "OUTBOX_LOG_FORMAT": "json",
        }
        words = ["tests.land_torture.naive"] if naive else ["outbox", "land"]
        return cls(site, [sys.executable, "-m", *words], folder, settings)

    def kill_at(self, point: Point, chance: random.Random) -> None:
        if point.kind is Kind.FAILPOINT:
            with self._started(**{FAILPOINT: f"{point.place}:{chance.randint(1, MOST_HITS)}"}) as process:
                self._await_end(process, -signal.SIGKILL)
            return
        if point.kind is Kind.WORKER:
            with self._started(**{FAILPOINT: f"{point.place}:{chance.randint(1, MOST_HITS)}"}) as process:
                self._await_worker(process)
            return
        sight = point if point.kind is Kind.SIGHT else LANDED
        before = sight.names(self.folder)
        with self._started() as process:
            if point.kind is Kind.STARTING:
                time.sleep(chance.uniform(0, _STARTING_SECONDS))  # where it dies is the point, and left to chance
            else:
                self._await_sight(process, lambda: bool(sight.names(self.folder) - before))
            if point.kind in {Kind.RUNNING, Kind.JAVA}:
                time.sleep(chance.uniform(0, _RUNNING_SECONDS))  # as above
            self._kill(process, point)

    def _await_worker(self, process: subprocess.Popen[bytes]) -> None:
        """A worker kills itself; the job ends by that, or is killed when it has gone on for two batches."""
        before, deadline = len(LANDED.names(self.folder)), time.monotonic() + _RUN_SECONDS
        while process.poll() is None and len(LANDED.names(self.folder)) < before + 2:
            if time.monotonic() > deadline:
                raise UnexpectedEndError(f"nothing was seen within {_RUN_SECONDS:.0f} s\n{self._said()}")
            time.sleep(_LOOK_SECONDS)

    def _kill(self, process: subprocess.Popen[bytes], point: Point) -> None:
        if point.kind is Kind.JAVA:
            for process_id in self._java():
                os.kill(process_id, signal.SIGKILL)
            self._await_end(process, Exit.FAILED)
        else:
            process.kill()
            self._await_end(process, -signal.SIGKILL)

    def forget_commit(self) -> None:
        """Delete the last file of `commits`: Spark hands that batch over again, if it has planned no later one."""
        wait_until(lambda: not list(self._java()), _DEAD_SECONDS)
        last = max(map(int, LANDED.names(self.folder)), default=None)
        for name in (f"{last}", f".{last}.crc"):
            (self.folder / COMMITS / name).unlink(missing_ok=True)

    def finish(self) -> None:
        wait_until(lambda: not list(self._java()), _DEAD_SECONDS)
        with self._started(
            OUTBOX_AVAILABLE_NOW="true", OUTBOX_MAX_OFFSETS_PER_TRIGGER=str(OFFSETS_AT_THE_END)
        ) as process:
            self._await_end(process, Exit.OK)

    @contextmanager
    def _started(self, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process of the job, gone after the block."""
        with (
            self.log.open("ab") as log,
            subprocess.Popen(
                self._command,
                env={**self._environment, **more},
                stdout=log,
                stderr=log,
                start_new_session=True,  # what ends the torture is not for the job
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def _await_end(self, process: subprocess.Popen[bytes], code: int) -> None:
        try:
            found = process.wait(_RUN_SECONDS)
        except subprocess.TimeoutExpired:
            raise UnexpectedEndError(f"it did not end within {_RUN_SECONDS:.0f} s\n{self._said()}") from None
        if found != code:
            raise UnexpectedEndError(f"it ended with {found}, not {code}\n{self._said()}")

    def _await_sight(self, process: subprocess.Popen[bytes], seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _RUN_SECONDS
        while not seen():
            if process.poll() is not None:
                raise UnexpectedEndError(f"it ended with {process.returncode} by itself\n{self._said()}")
            if time.monotonic() > deadline:
                raise UnexpectedEndError(f"nothing was seen within {_RUN_SECONDS:.0f} s\n{self._said()}")
            time.sleep(_LOOK_SECONDS)

    def _java(self) -> Iterator[int]:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes()
            except OSError:
                continue
            if self._mark.encode() in command and b"java" in command.partition(b"\0")[0]:
                yield int(path.parent.name)

    def _said(self) -> str:
        return self.log.read_text(errors="replace")[-_SHOWN:]
