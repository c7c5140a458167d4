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
from pathlib import Path

from examples.flights.application import Diary
from outbox._failpoints import VARIABLE

STEPS = {
    "after the half": "outbox.half_acked",
    "before COMMIT": "outbox.sealed",
    "after COMMIT": "outbox.committed",
}
KILLS_PER_STEP = 7


@dataclass(frozen=True, slots=True)
class Kill:
    """One process that was killed.

    Args:
        step: Where.
        transaction_id: The transaction that it held.
    """

    step: str
    transaction_id: str


@dataclass(slots=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    step: str | None


@dataclass
class Application:
    """The application's processes: starts them, has them killed, starts them again until the plan is done.

    Args:
        rows: Rows of input, or `all`.
        transactions: How many transactions the plan has.
        folder: Where the diaries are.
        environ: Settings of the processes.
        workers: How many processes.
        seed: Of the kills.
    """

    rows: str
    transactions: int
    folder: Path
    environ: Mapping[str, str]
    workers: int = 4
    seed: int = 2013
    kills: list[Kill] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw the plan of kills and start the processes."""
        steps = list(STEPS) * KILLS_PER_STEP
        self._random = random.Random(self.seed)
        self._random.shuffle(steps)
        self._steps = deque(steps)
        self._running = [self._start(number) for number in range(self.workers)]

    def diary(self, worker: int) -> Diary:
        """Return the diary of one process and its successors."""
        return Diary(self.folder / f"worker-{worker}.diary")

    def rolled_back(self) -> int:
        """How many transactions were rolled back on purpose so far."""
        return sum(len(self.diary(worker).rolled_back()) for worker in range(self.workers))

    def watch(self) -> bool:
        """Look after the processes once; whether any is still at work.

        Raises:
            RuntimeError: A process ended with an error of its own.
        """
        for worker in list(self._running):
            code = worker.process.poll()
            if code is None:
                continue
            self._running.remove(worker)
            if code == -signal.SIGKILL and worker.step is not None:
                self.kills.append(Kill(worker.step, self.diary(worker.number).last_attempt()))
                self._running.append(self._start(worker.number))
            elif code != 0:
                raise RuntimeError(f"application process {worker.number} ended with {code}")
        return bool(self._running)

    def save(self, path: Path) -> None:
        """Write the kills down."""
        path.write_text(json.dumps([asdict(kill) for kill in self.kills], indent=2))

    def stop(self) -> None:
        """End the processes that are still at work."""
        for worker in self._running:
            worker.process.kill()
            worker.process.wait()

    def _start(self, number: int) -> _Worker:
        step = self._steps.popleft() if self._steps else None
        environ = dict(self.environ)
        if step is not None:
            # Early enough that every planned kill comes before the work is done.
            at_most = max(2, self.transactions // (2 * len(STEPS) * KILLS_PER_STEP))
            environ[VARIABLE] = f"{STEPS[step]}:{self._random.randint(1, at_most)}"
        command = [sys.executable, "-m", "examples.flights.application", self.rows, str(number), str(self.workers)]
        return _Worker(number, subprocess.Popen([*command, str(self.diary(number).path)], env=environ), step)


def load_kills(path: Path) -> list[Kill]:
    """Return the kills that were written down."""
    return [Kill(**kill) for kill in json.loads(path.read_text())]
