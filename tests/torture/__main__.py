"""`python -m tests.torture --minutes 60`: torture, check, report."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tests.support.reports import CONSOLE, figures, finish, say_since_now
from tests.support.signals import end_in_order
from tests.torture.run import ROUND_SECONDS, ROUNDS, torture
from tests.torture.steps import KINDS

SHOWN = 20
"""Violations that the table shows; the report has all."""

RANDOM_AND_STEPS = {"random": None, **KINDS}
"""Kinds of rounds, by name."""


def main(
    minutes: Annotated[float, typer.Option(help="How long, about.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of all choices; 0: any.")] = 0,
    round_seconds: Annotated[float, typer.Option(help="Seconds of faults before all is healed and checked.")] = (
        ROUND_SECONDS
    ),
    loses_commits: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--loses-commits", help="Only fail over to an asynchronous standby: it must be found.")
    ] = False,
    hostile: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--hostile", help="Relays and checkers serve a second channel, of a hostile application.")
    ] = False,
    only: Annotated[str, typer.Option(help=f"Only rounds of this kind: {', '.join(RANDOM_AND_STEPS)}.")] = "",
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("build/torture/report.json"),
) -> None:
    """Kill, stop and cut at random, check the invariants; ends with 2 if one is violated, with 1 if it ended early."""
    end_in_order()
    seed = seed or time.time_ns() % 1_000_000
    again = f"--minutes {minutes:g} --round-seconds {round_seconds:g} --seed {seed}"
    again += " --hostile" * hostile + f" --only {only}" * bool(only)
    CONSOLE.print(f"seed {seed}: repeat with `python -m tests.torture {again}`", highlight=False)
    result = torture(
        minutes * 60,
        seed,
        report.parent,
        say_since_now(),
        round_seconds=round_seconds,
        loses_commits=loses_commits,
        hostile=hostile,
        kinds=[RANDOM_AND_STEPS[only]] if only else ROUNDS,
    ).report()
    finish(report, result, figures("torture", _rows(result)), wrong=result["violations"])
    if result["ended_early"]:
        CONSOLE.print(f"ended early: {result['ended_early']}", markup=False, highlight=False)
        raise SystemExit(1)


def _rows(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("seed", "seconds", "rounds", "transactions", "messages", "rows", "rolled_back_by_the_checker"):
        yield name.replace("_", " "), f"{result[name]:,}"
    for field, title in (("faults", "fault: "), ("pauses_seconds", "slowest message (s): "), ("outcomes", "")):
        yield from ((title + name, f"{count:,}") for name, count in result[field].items())
    yield "violations", str(result["violations"])
    yield from result["found"][:SHOWN]


if __name__ == "__main__":
    typer.run(main)
