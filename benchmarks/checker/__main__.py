"""`python -m benchmarks.checker`: what the checker's purge does, measured on servers of its own."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.application import Application
from benchmarks.checker.purge import measure_audit, measure_latency, measure_rate, measure_size
from benchmarks.environment import environment
from benchmarks.figures import Figure
from benchmarks.place import start_place
from benchmarks.results_file import FOLDER
from benchmarks.run import Run
from tests.harness import Site


class Part(enum.StrEnum):
    """What can be measured on its own."""

    PURGE = "purge"
    PURGE_LATENCY = "purge-latency"
    PURGE_SIZE = "purge-size"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Args:
        rounds: How often all variants run, in turn.
        rows: Rows that are purged in one run.
        cycles: Of inserts and purge, for the table's size.
        warm_up: Seconds in which the broker's JVM and everything else warms up.
    """

    rounds: int
    rows: int
    cycles: int
    warm_up: float


def _figures(part: Part, size: Size, site: Site, application: Application) -> list[Figure]:
    match part:
        case Part.PURGE:
            return measure_rate(site, size.rounds, size.rows)
        case Part.PURGE_LATENCY:
            return measure_latency(site, application, size.rounds, size.rows)
        case Part.PURGE_SIZE:
            return measure_size(site, size.cycles, size.rows)
        case Part.AUDIT:
            return measure_audit(site, size.rounds, size.rows)


Parts = Annotated[list[Part] | None, typer.Option(help="What to measure; may be repeated. All by default.")]
Rounds = Annotated[int, typer.Option(min=3, help="How often all variants run, in turn.")]
Rows = Annotated[int, typer.Option(min=10_000, help="Rows that are purged in one run.")]
Cycles = Annotated[int, typer.Option(min=4, help="Of inserts and purge, for the table's size.")]
WarmUp = Annotated[float, typer.Option(min=0, help="Seconds to warm up.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(
    part: Parts = None,
    rounds: Rounds = 5,
    rows: Rows = 200_000,
    cycles: Cycles = 20,
    warm_up: WarmUp = 15.0,
    output: Output = FOLDER / "checker.json",
) -> None:
    """Measure how fast rows are purged, and what an application feels of it."""
    size = Size(rounds, rows, cycles, warm_up)
    with start_place(warm_up) as (stack, site, application):
        run = Run(output, environment(stack), asdict(size))
        for each in part or list(Part):
            run.measure(each, partial(_figures, each, size, site, application))
        run.end()


if __name__ == "__main__":
    typer.run(main)
