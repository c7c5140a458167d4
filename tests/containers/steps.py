"""Steps of a long run: a line when one begins and ends, and a table of all at the end."""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

_TAIL_LINES = 40


class StepError(Exception):
    """A step failed; the text says why, and what to do."""


@dataclass(slots=True)
class Steps:
    logs: Path
    console: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))
    _started: float = field(default_factory=time.monotonic)
    _rows: list[tuple[str, float, str]] = field(default_factory=list)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say that a step begins and how it ended, and remember how long it took."""
        self._say(f"{what} ...")
        began = time.monotonic()
        outcome = "[red]failed[/]"
        try:
            yield
            outcome = "[green]ok[/]"
        finally:
            seconds = time.monotonic() - began
            self._rows.append((what, seconds, outcome))
            self._say(f"{what}: {outcome}, {seconds:.1f} s")

    def note(self, what: str, outcome: str) -> None:
        self._rows.append((what, 0.0, outcome))
        self._say(f"{what}: {outcome}")

    def run(self, command: Sequence[str | Path], name: str, environ: Mapping[str, str]) -> None:
        """Run a command; its output goes to a file."""
        log = self.logs / f"{name}.log"
        with log.open("wb") as output:
            code = subprocess.run(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            ).returncode
        if code:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
            raise StepError(f"`{' '.join(map(str, command[:4]))} ...` ended with {code}:\n{tail}\n(all of it: {log})")

    def show(self) -> None:
        table = Table("step", "outcome", title="containers")
        table.add_column("seconds", justify="right")
        for what, seconds, outcome in self._rows:
            table.add_row(what, outcome, f"{seconds:.1f}" if seconds else "")
        table.add_section()
        table.add_row("all", "", f"{time.monotonic() - self._started:.1f}")
        self.console.print(table)

    def _say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self._started:6.1f} s[/] {text}")
