"""What an application process did, in a file that outlives it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.flights.modes import Mode


@dataclass(frozen=True, slots=True)
class Diary:
    """Lines `attempt <number> <id>`, `committed <number> <s>`, `refused <number> <error>`, `rolled-back <number>`.

    The number is that of the planned transaction, the id that of one attempt at it, times are seconds since 1970.
    """

    path: Path

    def attempt(self, number: int, attempt: str) -> None:
        """Note that an attempt has published its messages and goes on to COMMIT."""
        self._write(f"attempt {number} {attempt}")

    def commit(self, number: int) -> None:
        """Note that COMMIT returned."""
        self._write(f"committed {number} {time.time():.3f}")

    def refuse(self, number: int, error: Exception) -> None:
        """Note the error with which the outbox refused a transaction, all of which is rolled back."""
        self._write(f"refused {number} {type(error).__name__}")

    def roll_back(self, number: int) -> None:
        """Note that a transaction was rolled back on purpose."""
        self._write(f"rolled-back {number}")

    def rolled_back(self) -> set[int]:
        """Return the numbers of the transactions that were rolled back on purpose."""
        return {int(words[1]) for words in self._lines("rolled-back")}

    def last_attempt(self) -> str:
        """Return the id of the last attempt."""
        return list(self._lines("attempt"))[-1][2]

    def commit_times(self) -> list[float]:
        """Return when COMMIT returned, for each transaction whose process survived that."""
        return [float(words[2]) for words in self._lines("committed")]

    def refusals(self) -> Counter[str]:
        """Count the attempts that were refused, by error."""
        return Counter(words[2] for words in self._lines("refused"))

    def _write(self, line: str) -> None:
        with self.path.open("a") as file:
            file.write(line + "\n")

    def _lines(self, kind: str) -> Iterator[list[str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return (line.split() for line in text.splitlines() if line.startswith(f"{kind} "))


def diary_of(folder: Path, mode: Mode, worker: int) -> Diary:
    """Return the diary of one process and its successors."""
    return Diary(folder / f"{mode}-{worker}.diary")


def diaries_of(folder: Path, mode: Mode) -> list[Diary]:
    """Return the diaries of all processes of a mode."""
    return [Diary(path) for path in sorted(folder.glob(f"{mode}-*.diary"))]
