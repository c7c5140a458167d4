"""`python -m benchmarks.relay`: how fast the relay is, measured on servers of its own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.application import Application
from benchmarks.environment import environment
from benchmarks.figures import Figure
from benchmarks.place import start_place
from benchmarks.polling_relay import empty_table
from benchmarks.relay.bloat import measure_bloat
from benchmarks.relay.channels import measure_busy_channels, measure_channels
from benchmarks.relay.drain import measure_drain, measure_pending
from benchmarks.relay.flood import measure_flood
from benchmarks.relay.growth import measure_growth
from benchmarks.relay.latency import measure_dead_service, measure_latency
from benchmarks.relay.limits import MANY, measure_memory, measure_restore
from benchmarks.relay.secured import measure_secured
from benchmarks.relay.stages import measure_stages
from benchmarks.relay.table_drain import measure_table_drain
from benchmarks.results_file import FOLDER
from benchmarks.run import Run
from stack import Stack
from tests.support.harness import Site


class Part(enum.StrEnum):
    """What can be measured on its own; by default all but the last six, which take very long."""

    DRAIN = "drain"
    TABLES = "tables"
    PENDING = "pending"
    LATENCY = "latency"
    DEAD_SERVICE = "dead-service"
    FLOOD = "flood"
    RESTORE = "restore"
    MEMORY = "memory"
    STAGES = "stages"
    CHANNELS = "channels"
    BUSY_CHANNELS = "busy-channels"
    SECURED = "secured"
    RESTORE_MANY = "restore-many"
    GROWTH = "growth"
    BLOAT = "bloat"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured.

    Args:
        messages: Committed halves of a drain.
        pending: Undecided halves before them.
        warm_up: Seconds in which the broker's JVM and everything else warms up.
    """

    rounds: int
    messages: int
    pending: int
    seconds: float
    warm_up: float


Measure = Callable[[Stack, Site, Application, Size], list[Figure]]

MEASURES: Mapping[Part, Measure] = {
    Part.DRAIN: lambda stack, _, __, size: measure_drain(stack, size.rounds, size.messages),
    Part.TABLES: lambda stack, _, __, size: measure_table_drain(stack, size.rounds, size.messages),
    Part.PENDING: lambda stack, _, __, size: measure_pending(stack, size.rounds, size.messages, size.pending),
    Part.LATENCY: lambda _, site, application, size: measure_latency(site, application, size.rounds, size.seconds),
    Part.DEAD_SERVICE: lambda _, site, application, size: measure_dead_service(
        site, application, size.rounds, size.seconds
    ),
    Part.FLOOD: lambda stack, _, __, size: measure_flood(stack, size.rounds),
    Part.RESTORE: lambda stack, _, __, size: measure_restore(stack, size.rounds),
    Part.MEMORY: lambda stack, _, __, ___: measure_memory(stack),
    Part.STAGES: lambda _, __, ___, size: measure_stages(size.rounds, size.messages),
    Part.CHANNELS: lambda stack, _, __, size: measure_channels(stack, size.rounds, size.seconds),
    Part.BUSY_CHANNELS: lambda stack, _, __, size: measure_busy_channels(stack, size.rounds, size.messages),
    Part.SECURED: lambda _, __, ___, size: measure_secured(size.rounds, size.messages, size.seconds),
    Part.RESTORE_MANY: lambda stack, _, __, size: [
        figure for pending in (0, MANY) for figure in measure_restore(stack, size.rounds, pending)
    ],
    Part.BLOAT: lambda _, __, ___, size: measure_bloat(size.messages),
    Part.GROWTH: lambda stack, _, __, size: measure_growth(stack, size.rounds, size.messages),
}

_LONG = {Part.CHANNELS, Part.BUSY_CHANNELS, Part.SECURED, Part.RESTORE_MANY, Part.GROWTH, Part.BLOAT}

Parts = Annotated[
    list[Part] | None, typer.Option(help="What to measure; may be repeated. By default all but the last six.")
]
Rounds = Annotated[int, typer.Option(min=3, help="How often all variants run, in turn.")]
Messages = Annotated[int, typer.Option(min=1_000, help="Committed halves of a drain.")]
Pending = Annotated[int, typer.Option(min=1_000, help="Undecided halves before them.")]
Seconds = Annotated[float, typer.Option(min=1, help="Of each run at a steady rate.")]
WarmUp = Annotated[float, typer.Option(min=0, help="Seconds to warm up.")]
Output = Annotated[Path, typer.Option(help="The results' file.")]


def main(
    part: Parts = None,
    rounds: Rounds = 5,
    messages: Messages = 100_000,
    pending: Pending = 100_000,
    seconds: Seconds = 15.0,
    warm_up: WarmUp = 15.0,
    output: Output = FOLDER / "relay.json",
) -> None:
    """Measure how fast the relay is, beside its baselines in the same run."""
    size = Size(rounds, messages, pending, seconds, warm_up)
    with start_place(warm_up) as (stack, site, application):
        run = Run(output, environment(stack), asdict(size))
        with site.connect() as connection:
            empty_table(connection)
        for each in part or [each for each in Part if each not in _LONG]:
            run.measure(each, partial(MEASURES[each], stack, site, application, size))
        run.end()


if __name__ == "__main__":
    typer.run(main)
