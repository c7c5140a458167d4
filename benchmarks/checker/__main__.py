"""`python -m benchmarks.checker`: how fast the checker is, measured on servers of its own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.application import Application
from benchmarks.checker.fence import measure_fence, measure_open_transaction
from benchmarks.checker.purge import measure_audit, measure_latency, measure_rate, measure_size
from benchmarks.environment import environment
from benchmarks.figures import Figure
from benchmarks.place import start_place
from benchmarks.results_file import FOLDER
from benchmarks.run import Run
from tests.support.harness import Site


class Part(enum.StrEnum):
    """What can be measured on its own."""

    FENCE = "fence"
    OPEN_TRANSACTION = "open-transaction"
    PURGE = "purge"
    PURGE_LATENCY = "purge-latency"
    PURGE_SIZE = "purge-size"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Args:
        cycles: Of inserts and purge, for the table's size.
        warm_up: Seconds in which the broker's JVM and everything else warms up.
    """

    rounds: int
    transactions: int
    rows: int
    cycles: int
    warm_up: float


Measure = Callable[[Site, Application, Size], list[Figure]]

MEASURES: Mapping[Part, Measure] = {
    Part.FENCE: lambda site, _, size: measure_fence(site, size.rounds, size.transactions),
    Part.OPEN_TRANSACTION: lambda site, _, size: measure_open_transaction(site, size.rounds),
    Part.PURGE: lambda site, _, size: measure_rate(site, size.rounds, size.rows),
    Part.PURGE_LATENCY: lambda site, application, size: measure_latency(site, application, size.rounds, size.rows),
    Part.PURGE_SIZE: lambda site, _, size: measure_size(site, size.cycles, size.rows),
    Part.AUDIT: lambda site, _, size: measure_audit(site, size.rounds, size.rows),
}

Parts = Annotated[list[Part] | None, typer.Option(help="What to measure; may be repeated. All by default.")]
Rounds = Annotated[int, typer.Option(min=3, help="How often all variants run, in turn.")]
Transactions = Annotated[int, typer.Option(min=1_000, help="Transactions that are checked in a run.")]
Rows = Annotated[int, typer.Option(min=10_000, help="Rows that are purged in a run.")]
Cycles = Annotated[int, typer.Option(min=4, help="Of inserts and purge, for the table's size.")]
WarmUp = Annotated[float, typer.Option(min=0, help="Seconds to warm up.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(
    part: Parts = None,
    rounds: Rounds = 7,
    transactions: Transactions = 20_000,
    rows: Rows = 200_000,
    cycles: Cycles = 20,
    warm_up: WarmUp = 15.0,
    output: Output = FOLDER / "checker.json",
) -> None:
    """Measure how fast transactions are checked, and rows purged and audited, beside baselines in the same run."""
    size = Size(rounds, transactions, rows, cycles, warm_up)
    with start_place(warm_up) as (stack, site, application):
        run = Run(output, environment(stack), asdict(size))
        for each in part or list(Part):
            run.measure(each, partial(MEASURES[each], site, application, size))
        run.end()


if __name__ == "__main__":
    typer.run(main)
