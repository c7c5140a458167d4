"""`python -m benchmarks.library`: what the producer library costs, measured on servers of its own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.application import SMALL, Application
from benchmarks.environment import environment
from benchmarks.figures import Figure
from benchmarks.library.added_time import measure_added_time
from benchmarks.library.bulk import measure_bulk, measure_bulk_rows
from benchmarks.library.drivers import measure_drivers
from benchmarks.library.memory import measure_memory
from benchmarks.library.throughput import (
    ALONE,
    ALONE_LARGE,
    RELAYED,
    RELAYED_LARGE,
    measure_throughput,
    relays,
)
from benchmarks.place import start_place
from benchmarks.results_file import FOLDER
from benchmarks.run import Run
from tests.support.harness import Site


class Part(enum.StrEnum):
    """What can be measured on its own."""

    ADDED_TIME = "added-time"
    BULK = "bulk"
    BULK_ROWS = "bulk-rows"
    THROUGHPUT = "throughput"
    RELAYED = "relayed"
    DRIVERS = "drivers"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Args:
        count: Transactions of a variant in a round, one after the other.
        seconds: Of a variant in a round, in many threads.
        warm_up: Seconds in which the broker's JVM and everything else warms up.
    """

    rounds: int
    count: int
    seconds: float
    transactions: int
    warm_up: float


Measure = Callable[[Site, Application, Size, Run], list[Figure]]


def _relayed(site: Site, application: Application, size: Size, _: Run) -> list[Figure]:
    with relays(site) as running:
        return [
            figure
            for scene in (RELAYED, RELAYED_LARGE)
            for figure in measure_throughput(application, scene, size.rounds, size.seconds, running.caught_up)
        ]


def _drivers(site: Site, application: Application, size: Size, _: Run) -> list[Figure]:
    with relays(site) as running:
        return measure_drivers(site, application, size.rounds, size.seconds, running.caught_up)


def _memory(_: Site, application: Application, size: Size, run: Run) -> list[Figure]:
    figures, series = measure_memory(application, size.transactions)
    run.series |= series
    return figures


MEASURES: Mapping[Part, Measure] = {
    Part.ADDED_TIME: lambda _, application, size, __: measure_added_time(application, size.rounds, size.count),
    Part.BULK: lambda site, application, size, _: measure_bulk(site, application, size.rounds),
    Part.BULK_ROWS: lambda site, application, size, _: measure_bulk_rows(site, application, size.rounds),
    Part.THROUGHPUT: lambda _, application, size, __: [
        figure
        for scene in (ALONE, ALONE_LARGE)
        for figure in measure_throughput(application, scene, size.rounds, size.seconds)
    ],
    Part.RELAYED: _relayed,
    Part.DRIVERS: _drivers,
    Part.MEMORY: _memory,
}

_LONG = Part.MEMORY
"""Takes half an hour, and has a results file of its own."""

Parts = Annotated[list[Part] | None, typer.Option(help="What to measure; may be repeated. By default all but memory.")]
Rounds = Annotated[int, typer.Option(min=3, help="How often all variants run, in turn.")]
Count = Annotated[int, typer.Option(min=100, help="Transactions of a variant in a round, one after the other.")]
Seconds = Annotated[float, typer.Option(min=1, help="Of a variant in a round, in many threads.")]
Transactions = Annotated[int, typer.Option(min=1_000, help="Of the memory run; the full size is 1000000.")]
WarmUp = Annotated[float, typer.Option(min=0, help="Seconds to warm up.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(
    part: Parts = None,
    rounds: Rounds = 7,
    count: Count = 800,
    seconds: Seconds = 3.0,
    transactions: Transactions = 20_000,
    warm_up: WarmUp = 15.0,
    output: Output = FOLDER / "library.json",
) -> None:
    """Measure what the producer library costs an application, beside its baselines in the same run."""
    size = Size(rounds, count, seconds, transactions, warm_up)
    with start_place(warm_up) as (stack, site, application):
        run = Run(output, environment(stack), asdict(size))
        for each in part or [each for each in Part if each is not _LONG]:
            application.use_payload(SMALL)
            run.measure(each, partial(MEASURES[each], site, application, size, run))
        run.end()


if __name__ == "__main__":
    typer.run(main)
