"""`python -m benchmarks.checker`: how fast the checker is, measured on servers of its own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.checker.fence import measure_fence, measure_open_transaction
from benchmarks.environment import environment
from benchmarks.figures import Figure
from benchmarks.results_file import FOLDER
from benchmarks.run import Run
from stack import Stack
from tests.harness import Site


class Part(enum.StrEnum):
    """What can be measured on its own."""

    FENCE = "fence"
    OPEN_TRANSACTION = "open-transaction"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Args:
        rounds: How often all variants run, in turn.
        transactions: That are checked in a run.
    """

    rounds: int
    transactions: int


MEASURES: Mapping[Part, Callable[[Site, Size], list[Figure]]] = {
    Part.FENCE: lambda site, size: measure_fence(site, size.rounds, size.transactions),
    Part.OPEN_TRANSACTION: lambda site, size: measure_open_transaction(site, size.rounds),
}

Parts = Annotated[list[Part] | None, typer.Option(help="What to measure; may be repeated. All by default.")]
Rounds = Annotated[int, typer.Option(min=3, help="How often all variants run, in turn.")]
Transactions = Annotated[int, typer.Option(min=1_000, help="Transactions that are checked in a run.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(
    part: Parts = None,
    rounds: Rounds = 7,
    transactions: Transactions = 20_000,
    output: Output = FOLDER / "checker.json",
) -> None:
    """Measure how fast the checker is, beside its baselines in the same run."""
    size = Size(rounds, transactions)
    with Stack() as stack, Site(stack.bootstrap_servers, stack.postgres_url) as site:
        site.create()
        run = Run(output, environment(stack), asdict(size))
        for each in part or list(Part):
            run.measure(each, partial(MEASURES[each], site, size))
        run.end()


if __name__ == "__main__":
    typer.run(main)
