"""`python -m benchmarks.whole`: all benchmarks in one run, and their results in one file."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.results_file import FOLDER, LATEST, read_results, write_json
from benchmarks.whole.merge import Outcome, merge
from benchmarks.whole.plan import BUDGET_SECONDS, Mode, Step, steps
from benchmarks.whole.processes import run_step

WORK = Path("build/bench")
RUNNING = WORK / "running.json"
"""The results of a run that has not ended: kept results are replaced by a whole run's only."""

console = Console()

Size = Annotated[Mode, typer.Option("--mode", help="How much is measured.")]
Like = Annotated[Path | None, typer.Option(help="Results whose size this run has, instead.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(mode: Size = Mode.ORDINARY, like: Like = None, output: Output = FOLDER / LATEST) -> None:
    """Run all benchmarks one after the other; what fails or finds no time is reported as not measured."""
    if like is not None:
        if not like.exists():
            sys.exit(f"{like} is missing: `make bench` makes it")
        mode = Mode(read_results(like)["mode"])
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    WORK.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    end = time.monotonic() + BUDGET_SECONDS[mode]
    try:
        for step in steps(mode):
            outcomes.append(_run(step, end - time.monotonic()))
            # Written after each step: an interrupted run has not been in vain.
            write_json(RUNNING, merge(mode, _command(mode), outcomes))
    except KeyboardInterrupt:
        sys.exit(f"interrupted; the steps that ended stand in {RUNNING}, and {output} is as it was")
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(RUNNING, output)
    console.print(f"written: {output}; `python -m benchmarks.report` makes the document")


def _run(step: Step, left: float) -> Outcome:
    """Run a step, if it is there and there is time."""
    if importlib.util.find_spec(step.module) is None:
        return _done(Outcome(step, 0.0, None, f"there is no {step.module}"))
    if left <= 0:
        return _done(Outcome(step, 0.0, None, "the run's time was up"))
    console.print(f"{step.name}: {' '.join(step.arguments)}", highlight=False)
    file, log = WORK / f"{step.name}.json", WORK / f"{step.name}.log"
    file.unlink(missing_ok=True)
    began = time.monotonic()
    failure = run_step([*step.command, "--output", str(file)], log, min(step.longest_seconds, left))
    return _done(Outcome(step, time.monotonic() - began, read_results(file) if file.exists() else None, failure))


def _done(outcome: Outcome) -> Outcome:
    figures = len((outcome.results or {}).get("figures", []))
    ending = outcome.failure or "done"
    console.print(f"  {figures} figures, {outcome.seconds:.0f} s, {ending}", markup=False, highlight=False)
    return outcome


def _command(mode: Mode) -> str:
    return {Mode.QUICK: "make bench QUICK=1", Mode.ORDINARY: "make bench", Mode.FULL: "make bench FULL=1"}[mode]


if __name__ == "__main__":
    typer.run(main)
