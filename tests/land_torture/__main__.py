"""`python -m tests.land_torture --kills 200`: kill, check, report."""

import enum
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.environment import environment
from outbox._service.process import stop_on_signals
from stack import Stack
from tests.land_torture.run import LandRun, Result
from tests.land_torture.sinking import SinkRun
from tests.support.harness import Site
from tests.support.reports import figures, finish, say_since_now


class Sink(enum.StrEnum):
    """What may be tortured; `naive`, and `kafka`, which is Spark's own sink, must be found out."""

    DELTA = "delta"
    OUTBOX = "outbox"
    NAIVE = "naive"
    KAFKA = "kafka"


def main(
    kills: Annotated[int, typer.Option(min=1, help="How often, for each.")] = 40,
    seed: Annotated[int, typer.Option(help="Of all choices; 0: any.")] = 0,
    sink: Annotated[list[Sink] | None, typer.Option(help="Repeatable. Default: delta and outbox.")] = None,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("build/land-torture/report.json"),
) -> None:
    """Kill `outbox land` and streams into sinks again and again, until Ctrl-C; 2: an invariant is violated."""
    stop = stop_on_signals()
    seed = seed or time.time_ns() % 1_000_000
    sinks = sink or [Sink.DELTA, Sink.OUTBOX]
    folder = report.parent
    shutil.rmtree(folder / "work", ignore_errors=True)
    say = say_since_now()
    say(f"seed {seed}; starting Kafka")
    with Stack() as stack, ThreadPoolExecutor(len(sinks)) as together:

        def run(each: Sink) -> Result:
            with Site(stack.bootstrap_servers, stack.postgres_url) as site:
                made = SinkRun if each in {Sink.OUTBOX, Sink.KAFKA} else LandRun
                return made(site, each, seed, folder / "work" / each, say).run(kills, stop.is_set)

        content = environment(stack)
        results = list(together.map(run, sinks))
    content["runs"] = [result.report() for result in results]
    tables = [figures(f"land, {result.sink}", _rows(result)) for result in results]
    finish(report, content, *tables, wrong=any(result.violations for result in results))


def _rows(result: Result) -> Iterator[tuple[str, str]]:
    found = result.report()
    yield from ((name.replace("_", " "), f"{value:,}") for name, value in found.items() if isinstance(value, int))
    yield from ((f"killed: {name}", f"{count:,}") for name, count in found["kills_by_point"].items())
    yield from ((violation.invariant, violation.detail) for violation in result.violations)


if __name__ == "__main__":
    typer.run(main)
