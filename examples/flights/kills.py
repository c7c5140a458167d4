"""The application's processes, and the plan by which they are killed while they hold a transaction open."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path

from examples.flights.crash import VARIABLE as CRASH
from examples.flights.diary import diaries_of, diary_of
from examples.flights.modes import WORKERS, Mode
from outbox._failpoints import VARIABLE as FAILPOINT

AFTER_HALF, BEFORE_COMMIT, AFTER_COMMIT = STEPS = ("after the half", "before COMMIT", "after COMMIT")

_FAILPOINTS = {
    AFTER_HALF: (FAILPOINT, "outbox.half_acked"),
    BEFORE_COMMIT: (FAILPOINT, "outbox.sealed"),
    AFTER_COMMIT: (FAILPOINT, "outbox.committed"),
}
PLACES = {
    Mode.HALF: _FAILPOINTS,
    Mode.TABLE: {BEFORE_COMMIT: (CRASH, "before-commit"), AFTER_COMMIT: (CRASH, "after-commit")},
}
"""Per mode and step: the variable and the place that has a process killed there."""

KILLS_PER_MODE = 7

_KAFKA = {"OUTBOX_BOOTSTRAP_SERVERS", "OUTBOX_KAFKA"}
"""What leads to Kafka; table mode has neither."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One process that was killed.

    Args:
        attempt: Id of the attempt at a transaction that it held.
    """

    mode: Mode
    step: str
    attempt: str


@dataclass(slots=True)
class _Worker:
    mode: Mode
    number: int
    process: subprocess.Popen[bytes]
    step: str | None


@dataclass
class Application:
    """The application's processes: starts them, has them killed, starts them again until the plan is done.

    Args:
        rows: Rows of input, or `all`.
        folder: Where the diaries are.
    """

    rows: str
    transactions: Mapping[Mode, int]
    folder: Path
    environ: Mapping[str, str]
    seed: int = 2013
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw the plan of kills and start the processes."""
        self._random = random.Random(self.seed)
        self._steps = {mode: deque(self._plan_kills(mode)) for mode in Mode}
        self._running = [self._start(mode, number) for number in range(WORKERS) for mode in Mode]

    def _plan_kills(self, mode: Mode) -> list[str]:
        steps = list(islice(cycle(PLACES[mode]), KILLS_PER_MODE))
        self._random.shuffle(steps)
        return steps

    def rolled_back(self) -> dict[Mode, int]:
        """How many transactions were rolled back on purpose so far, by mode."""
        return {mode: sum(len(diary.rolled_back()) for diary in diaries_of(self.folder, mode)) for mode in Mode}

    def watch(self) -> bool:
        """Look after the processes once; whether any is still at work."""
        for worker in list(self._running):
            code = worker.process.poll()
            if code is None:
                continue
            self._running.remove(worker)
            if code == -signal.SIGKILL and worker.step is not None:
                attempt = diary_of(self.folder, worker.mode, worker.number).last_attempt()
                self.kills.append(Kill(worker.mode, worker.step, attempt))
                self._running.append(self._start(worker.mode, worker.number))
            elif code != 0:
                log = self._log(worker.mode, worker.number)
                raise RuntimeError(f"an application process of {worker.mode} mode ended with {code}: see {log}")
        return bool(self._running)

    def save(self, path: Path) -> None:
        """Write the kills down."""
        path.write_text(json.dumps([asdict(kill) for kill in self.kills], indent=2))

    def stop(self) -> None:
        """End the processes that are still at work."""
        for worker in self._running:
            worker.process.kill()
            worker.process.wait()

    def _start(self, mode: Mode, number: int) -> _Worker:
        step = self._steps[mode].popleft() if self._steps[mode] else None
        environ = {**self.environ, "OUTBOX_SERVICE": mode.service}
        if mode is Mode.TABLE:
            for name in environ.keys() & _KAFKA:
                del environ[name]
        if step is not None:
            variable, place = PLACES[mode][step]
            # Early enough that every planned kill comes before the work is done.
            at_most = max(2, self.transactions[mode] // (2 * KILLS_PER_MODE))
            environ[variable] = f"{place}:{self._random.randint(1, at_most)}"
        command = [sys.executable, "-m", "examples.flights.application"]
        arguments = [self.rows, mode.value, str(number), str(WORKERS), str(self.folder)]
        with self._log(mode, number).open("ab") as log:
            process = subprocess.Popen([*command, *arguments], env=environ, stderr=log)
        return _Worker(mode, number, process, step)

    def _log(self, mode: Mode, number: int) -> Path:
        return self.folder / f"{mode}-{number}.log"


def load_kills(path: Path) -> list[Kill]:
    """Return the kills that were written down."""
    return [Kill(Mode(kill.pop("mode")), **kill) for kill in json.loads(path.read_text())]
