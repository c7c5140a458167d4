"""Runs tests with a mutant in place, in a process of its own, and judges how they ended."""

import enum
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis  # noqa: F401 - imported here once, not in each fork
import pytest

from tests.mutants.runner.mutant import Mutant

FOLDER = Path("build/mutants")
SECONDS = 600.0
"""So long one run of tests may take."""

_OPTIONS = (
    *("-p", "tests.mutants.runner.plugin", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:anyio"),
    *("-o", "addopts=--strict-markers --strict-config"),
    # What this process has imported before is not rewritten; only tests' own assertions need that.
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)


class Verdict(enum.StrEnum):
    """What became of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    UNCLEAR = "UNCLEAR"  # something failed otherwise than by an assertion: that proves nothing


@dataclass(frozen=True)
class Result:
    """How the tests of a mutant ended."""

    verdict: Verdict
    seconds: float
    why: str = ""
    reasons: dict[str, str] = field(default_factory=dict)  # how the tests failed, by test id


def run(name: str, mutant: Mutant) -> Result:
    """Run the tests of a mutant, which should fail, each by an assertion."""
    started = time.monotonic()
    endings = _pytest(name, ["--mutant", name, *mutant.tests])
    verdict, why = judge(mutant.tests, endings)
    reasons = {ending["test"]: ending["reason"] for ending in endings or () if ending["by_assertion"]}
    return Result(verdict, time.monotonic() - started, why, reasons)


def control(tests: Sequence[str]) -> str:
    """Run tests without a mutant: they must pass. Returns what is wrong, empty if nothing is."""
    endings = _pytest("control", tests)
    if endings is None:
        return f"the tests did not end properly: see {FOLDER}/control.log"
    failed = [ending["test"] for ending in endings if ending["outcome"] != "passed"]
    return "" if not failed else f"without a mutant these do not pass: {', '.join(failed)}"


def judge(tests: Sequence[str], endings: list[dict[str, Any]] | None) -> tuple[Verdict, str]:
    """What the endings of a mutant's tests mean, and why it is not caught; None: the run did not end properly."""
    if endings is None:
        return Verdict.UNCLEAR, "the tests did not end properly: see its log"
    errors = [ending for ending in endings if ending["outcome"] != "passed" and not ending["by_assertion"]]
    if errors:
        return Verdict.UNCLEAR, f"{errors[0]['test']}: {errors[0]['outcome']}, {errors[0]['reason']}"
    failed = {ending["test"].partition("[")[0] for ending in endings if ending["by_assertion"]}
    passed = [test for test in tests if test not in failed]
    if passed:
        return Verdict.SURVIVED, f"passed all the same: {', '.join(passed)}"
    return Verdict.CAUGHT, ""


def _pytest(name: str, arguments: Sequence[str]) -> list[dict[str, Any]] | None:
    """Run pytest in a fork of this process, which has the imports; how each test ended, None if the run did not."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    report = FOLDER / f"{name}.endings.json"
    report.unlink(missing_ok=True)
    command = [*_OPTIONS, "--mutant-report", str(report), *arguments]
    process = multiprocessing.get_context("fork").Process(target=_run_pytest, args=(FOLDER / f"{name}.log", command))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return None
    failed_or_not = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
    if process.exitcode not in failed_or_not or not report.exists():
        return None
    endings: list[dict[str, Any]] = json.loads(report.read_text())
    report.unlink()
    return endings


def _run_pytest(log: Path, command: Sequence[str]) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(pytest.main(list(command)))
