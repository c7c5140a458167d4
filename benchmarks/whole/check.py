"""`python -m benchmarks.whole.check`: fails if a ratio of a run is more than 20 % worse than the kept one.

So it does if a target is missed that was met.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.results_file import FOLDER, LATEST, read_results
from benchmarks.whole.comparison import ALLOWED, regressions

Kept = Annotated[Path, typer.Option(help="The results to compare with.")]
Run = Annotated[Path, typer.Option(help="The results of the run to look at.")]


def main(kept: Kept = FOLDER / LATEST, run: Run = Path("build/bench") / LATEST) -> None:
    """Compare the ratios of two whole runs; exit code 1 if one has become worse or misses its target now."""
    for path in (kept, run):
        if not path.exists():
            sys.exit(f"{path} is missing: `make bench` makes the kept results, `make bench-check` a run beside them")
    before, after = read_results(kept), read_results(run)
    if before["mode"] != after["mode"]:
        print(f"the kept run is {before['mode']}, this one {after['mode']}: other sizes may have other ratios")
    worse = regressions(before, after)
    for said in worse:
        print(said)
    if worse:
        sys.exit(f"{len(worse)} figures became worse by more than {ALLOWED:.0%}, or miss a target that they met")
    print(f"no ratio became worse by more than {ALLOWED:.0%}, and no target is missed that was met")


if __name__ == "__main__":
    typer.run(main)
