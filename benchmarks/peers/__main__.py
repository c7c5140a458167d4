"""`python -m benchmarks.peers`: how the project stands beside Debezium, RocketMQ and a polling relay."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.application import SMALL, Application
from benchmarks.environment import environment
from benchmarks.figures import Figure
from benchmarks.peers.checkback import measure_checkback
from benchmarks.peers.cost import measure_cost
from benchmarks.peers.death import measure_deaths
from benchmarks.peers.drain import Scene, measure_drains
from benchmarks.peers.jars import peer_versions
from benchmarks.peers.latency import measure_latencies
from benchmarks.peers.throughput import Load, measure_shares
from benchmarks.place import start_place
from benchmarks.polling_relay import empty_table
from benchmarks.results_file import FOLDER
from benchmarks.run import Run
from benchmarks.steady import BUSY, RATE
from stack import Stack
from tests.support.harness import Site


class Part(enum.StrEnum):
    """What can be measured on its own."""

    DRAIN = "drain"
    LATENCY = "latency"
    CHECK_BACK = "check-back"
    DEATH = "death"
    SHARE = "share"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Args:
        messages: Of a drain, and of the run in which somebody is killed.
        halves: That nobody decided.
        count: Transactions of each thread of an application.
        warm_up: Seconds in which the broker's JVM and everything else warms up.
        whole: Whether the whole matrix is measured: all sizes, rates, threads.
    """

    rounds: int
    messages: int
    halves: int
    seconds: float
    count: int
    warm_up: float
    whole: bool
    without: tuple[str, ...]
    rate: tuple[int, ...]

    def scenes(self) -> list[Scene]:
        """Return what waits in the drains; of large bodies there are fewer."""
        if not self.whole:
            return [Scene(self.messages)]
        sizes = {SMALL: self.messages, 1_024: self.messages, 10_240: self.messages // 5}
        return [Scene(messages, size, each) for size, messages in sizes.items() for each in (1, 5)]

    def rates(self) -> list[int]:
        """Messages per second of the steady runs."""
        return list(self.rate) or ([50, RATE, 1_000, BUSY] if self.whole else [RATE, BUSY])

    def loads(self) -> list[Load]:
        """How applications run."""
        if not self.whole:
            return [Load(count=self.count)]
        return [
            Load(threads, size, self.count, whole=True) for threads in (1, 8, 32) for size in (SMALL, 10_000, 100_000)
        ]

    def undecided(self) -> list[int]:
        """Halves of the check-backs."""
        return [self.halves, self.halves * 5] if self.whole else [self.halves]


Measure = Callable[[Stack, Site, Application, Size], list[Figure]]

MEASURES: Mapping[Part, Measure] = {
    Part.DRAIN: lambda stack, site, _, size: measure_drains(stack, site, size.scenes(), size.rounds, size.without),
    Part.LATENCY: lambda stack, site, application, size: measure_latencies(
        stack, site, application, size.rounds, size.seconds, size.rates(), size.without
    ),
    Part.CHECK_BACK: lambda stack, site, _, size: [
        figure
        for halves in size.undecided()
        for figure in measure_checkback(stack, site, size.rounds, halves, size.without)
    ],
    Part.DEATH: lambda stack, site, _, size: measure_deaths(stack, site, size.rounds, size.messages, size.without),
    Part.SHARE: lambda _, site, application, size: measure_shares(
        site, application, size.rounds, size.loads(), size.without
    ),
    Part.COST: lambda _, site, application, size: measure_cost(site, application, size.rounds, size.count * 8),
}


def _environment(stack: Stack) -> dict[str, Any]:
    found = environment(stack)
    return {**found, "versions": {**found["versions"], **peer_versions()}}


Parts = Annotated[list[Part] | None, typer.Option(help="What to measure; may be repeated. All by default.")]
Rounds = Annotated[int, typer.Option(min=3, help="How often all run, in turn.")]
Messages = Annotated[int, typer.Option(min=1_000, help="Of a drain, and of the run in which somebody is killed.")]
Halves = Annotated[int, typer.Option(min=1_000, help="Halves that nobody decided.")]
Seconds = Annotated[float, typer.Option(min=1, help="Of each run at a steady rate.")]
Count = Annotated[int, typer.Option(min=10, help="Transactions of each thread of an application.")]
WarmUp = Annotated[float, typer.Option(min=0, help="Seconds to warm up.")]
Without = Annotated[list[str] | None, typer.Option(help="A peer that is left out; may be repeated.")]
Whole = Annotated[bool, typer.Option("--whole", help="The whole matrix: all sizes, rates and threads (hours).")]
Rate = Annotated[list[int] | None, typer.Option(help="Messages per second of the steady runs; may be repeated.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(
    *,
    part: Parts = None,
    rounds: Rounds = 3,
    messages: Messages = 100_000,
    halves: Halves = 20_000,
    seconds: Seconds = 10.0,
    count: Count = 300,
    warm_up: WarmUp = 15.0,
    whole: Whole = False,
    without: Without = None,
    rate: Rate = None,
    output: Output = FOLDER / "peers.json",
) -> None:
    """Measure the project beside its peers in the same run; a peer that cannot start is reported as not measured."""
    size = Size(rounds, messages, halves, seconds, count, warm_up, whole, tuple(without or ()), tuple(rate or ()))
    settings = {name: getattr(size, name) for name in Size.__slots__}
    with start_place(warm_up) as (stack, site, application):
        run = Run(output, _environment(stack), settings)
        with site.connect() as connection:
            empty_table(connection)
        for each in part or list(Part):
            application.use_payload(SMALL)
            run.measure(each, partial(MEASURES[each], stack, site, application, size))
        run.end()


if __name__ == "__main__":
    typer.run(main)
