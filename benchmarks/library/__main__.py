"""`python -m benchmarks.library`: what the producer library costs, measured on servers of its own."""

from __future__ import annotations

import enum
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.application import Application
from benchmarks.environment import environment
from benchmarks.figures import Figure
from benchmarks.library.added_time import measure_added_time
from benchmarks.library.bulk import measure_bulk
from benchmarks.library.memory import measure_memory
from benchmarks.library.throughput import (
    ALONE,
    ALONE_LARGE,
    RELAYED,
    RELAYED_LARGE,
    SMALL,
    THREADS,
    measure_throughput,
    relays,
)
from benchmarks.place import start_place
from benchmarks.results_file import FOLDER, write_results
from tests.harness import Site

console = Console()


class Part(enum.StrEnum):
    """What can be measured on its own."""

    ADDED_TIME = "added-time"
    BULK = "bulk"
    THROUGHPUT = "throughput"
    RELAYED = "relayed"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Args:
        rounds: How often all variants run, in turn.
        count: Transactions of a variant in a round.
        transactions: Of the memory run.
        warm_up: Seconds in which the broker's JVM and everything else warms up.
    """

    rounds: int
    count: int
    transactions: int
    warm_up: float


@dataclass(slots=True)
class Run:
    """One run and what it found so far."""

    site: Site
    application: Application
    size: Size
    figures: list[Figure] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)

    def measure(self, part: Part) -> None:
        """Measure one part; its figures are printed."""
        began = time.monotonic()
        self.application.use_payload(SMALL)
        found = self._figures(part)
        self.figures += found
        console.print(f"[bold]{part}[/bold], {time.monotonic() - began:.0f} s")
        for figure in found:
            _show(figure)

    def _figures(self, part: Part) -> list[Figure]:
        size, each = self.size, max(1, self.size.count // THREADS)
        match part:
            case Part.ADDED_TIME:
                return measure_added_time(self.application, size.rounds, size.count)
            case Part.BULK:
                return measure_bulk(self.site, self.application, size.rounds)
            case Part.THROUGHPUT:
                return [
                    figure
                    for scene in (ALONE, ALONE_LARGE)
                    for figure in measure_throughput(self.application, scene, size.rounds, each)
                ]
            case Part.RELAYED:
                with relays(self.site) as caught_up:
                    return [
                        figure
                        for scene in (RELAYED, RELAYED_LARGE)
                        for figure in measure_throughput(self.application, scene, size.rounds, each, caught_up)
                    ]
            case Part.MEMORY:
                figures, series = measure_memory(self.application, size.transactions)
                self.series |= series
                return figures


def _show(figure: Figure) -> None:
    record = figure.record()
    spread = record["spread"]["ratio"]
    met = {None: "", True: ", target met", False: ", [bold]target missed[/bold]"}[record["met"]]
    console.print(
        f"  {record['title']}: {record['ours']:g} {record['unit']}, {record['baseline']} {record['baseline_value']:g}"
        f" → ratio {record['ratio']:g} ({spread['minimum']:g} to {spread['maximum']:g}){met}"
    )


Parts = Annotated[list[Part] | None, typer.Option(help="What to measure; may be repeated. All by default.")]
Rounds = Annotated[int, typer.Option(min=3, help="How often all variants run, in turn.")]
Count = Annotated[int, typer.Option(min=100, help="Transactions of a variant in a round.")]
Transactions = Annotated[int, typer.Option(min=1_000, help="Of the memory run; the full size is 1000000.")]
WarmUp = Annotated[float, typer.Option(min=0, help="Seconds to warm up.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(
    part: Parts = None,
    rounds: Rounds = 7,
    count: Count = 800,
    transactions: Transactions = 20_000,
    warm_up: WarmUp = 15.0,
    output: Output = FOLDER / "library.json",
) -> None:
    """Measure what the producer library costs an application, beside its baselines in the same run."""
    size = Size(rounds, count, transactions, warm_up)
    with start_place() as (stack, site, application):
        where = environment(stack)
        application.use_payload(SMALL)
        application.warm_up([application.insert, application.publish], warm_up, THREADS)
        run = Run(site, application, size)
        for each in part or list(Part):
            run.measure(each)
            write_results(output, where, asdict(size), run.figures, run.series)  # a later part may fail
    console.print(f"written: {output}; `python -m benchmarks.report` makes the document")


if __name__ == "__main__":
    typer.run(main)
