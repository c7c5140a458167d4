"""`python -m tests.repeat TEST`: repeats tests beside endless loops, and keeps what `record_property` measured."""

import argparse
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "repeat"


@contextmanager
def busy(loops: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def rows(report: Path, number: int) -> Iterator[str]:
    """Yield a table row for each test of a run: its outcome, its seconds and what it measured."""
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        outcome = "failed" if case.find("failure") is not None or case.find("error") is not None else "passed"
        figures = "; ".join(f"{found.get('name')}: {found.get('value')}" for found in case.iter("property"))
        test = f"{str(case.get('classname')).rpartition('.')[2]}::{case.get('name')}"
        yield f"| {number} | {test} | {outcome} | {float(case.get('time') or 0):.0f} | {figures} |"


def run(tests: Sequence[str], number: int) -> list[str]:
    report = FOLDER / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junitxml={report}", *tests]
    with (FOLDER / f"run-{number}.log").open("w") as output:
        subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    return list(rows(report, number)) if report.exists() else [f"| {number} | - | failed | - | no report |"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.repeat", description=__doc__)
    parser.add_argument("tests", nargs="+", help="ids of tests, or options of pytest")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--loops", type=int, default=2, help="endless loops beside them")
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    table = FOLDER / "table.md"
    lines = ["| run | test | outcome | seconds | measured |", "|---|---|---|---|---|"]
    with busy(given.loops):
        for number in range(1, given.times + 1):
            lines += run(given.tests, number)
            table.write_text("\n".join(lines) + "\n")
            sys.stdout.write(f"{time.strftime('%H:%M:%S')} {lines[-1]}\n")
            sys.stdout.flush()
    return int(any("| failed |" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
