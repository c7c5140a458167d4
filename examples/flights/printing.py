"""The demo's lines of progress, and its result as tables for people."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.table import Table

from examples.flights.modes import WORKERS, Mode
from examples.flights.reconcile import Reconciliation
from examples.flights.side_by_side import BESIDE_SECONDS, Rates
from examples.flights.summary import Summary

console = Console(width=None if sys.stdout.isatty() else 100)

Line = dict[Mode, str]
"""What a line of a table has in the column of each mode."""


def say(text: str) -> None:
    """Print a line of progress, with the time."""
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/] {text}")


def show(summary: Summary, to: Console = console) -> None:
    """Print everything that the demo found out."""
    to.print(_places(summary))
    to.print(_kills(summary))
    to.print(_modes(summary))
    decided = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.decided.items()))
    to.print(
        f"{summary.committed:,} transactions committed, {summary.rolled_back:,} rolled back; "
        f"{summary.decided.total()} decided by check-back ({decided})"
    )
    if summary.outage is not None:
        stopped = summary.outage.stop - summary.outage.start
        away = summary.outage.back - summary.outage.start
        to.print(f"Kafka was stopped for {stopped:.1f} s, and answered again {away:.1f} s after it had stopped")
    for mode in summary.stalled():
        to.print(f"[red]{mode} mode committed nothing while Kafka was stopped[/]")
    for mode in summary.wrong_ways():
        to.print(f"[red]{mode} mode: committed messages are not visible once, or not in the way of this mode[/]")


def _places(summary: Summary) -> Table:
    table = Table("place", "messages", "lost", "duplicated", "phantom", "out of order", title="reconciliation")
    table.add_row("Postgres (truth)", f"{summary.told:,}", "", "", "", "")
    table.add_row("real topics, read_committed", *_cells(summary.visible))
    table.add_row("landed by Spark", *_cells(summary.landed))
    return table


def _cells(place: Reconciliation) -> list[str]:
    counts = [len(place.lost), len(place.doubled), len(place.phantom), len(place.out_of_order)]
    return [f"{place.seen:,}", *(_judged(count) for count in counts)]


def _judged(count: int) -> str:
    return f"[{'red' if count else 'green'}]{count:,}[/]"


def _kills(summary: Summary) -> Table:
    table = Table("killed", "times", "rolled back", "committed", title="application processes killed")
    for step, outcomes in summary.kills_by_step().items():
        table.add_row(step, *(str(outcomes[name]) for name in ("kills", "rolled_back", "committed")))
    return table


def _modes(summary: Summary) -> Table:
    table = Table("", *(f"{mode} mode" for mode in Mode), title="the modes side by side")
    for name, line in {**_work(summary), **_outage(summary), **_messages(summary)}.items():
        table.add_row(name, *(line[mode] for mode in Mode))
    return table


def _work(summary: Summary) -> dict[str, Line]:
    return {
        "processes": {mode: str(WORKERS) for mode in Mode},
        "killed and started again": {mode: str(figures.killed) for mode, figures in summary.modes.items()},
        "transactions committed": {mode: f"{figures.committed:,}" for mode, figures in summary.modes.items()},
    }


def _outage(summary: Summary) -> dict[str, Line]:
    """Return lines about the outage, and about attempts that were refused, which happens in it."""
    rates = {mode: figures.rates for mode, figures in summary.modes.items() if figures.rates is not None}
    errors = sorted({error for figures in summary.modes.values() for error in figures.refused})
    lines = {f"refused with {error}, tried again": _refused(summary, error) for error in errors}
    return {**_rates(rates), **lines} if rates else lines


def _rates(rates: dict[Mode, Rates]) -> dict[str, Line]:
    beside = f"{BESIDE_SECONDS:.0f} s"
    return {
        f"… per second, in {beside} before the outage": {mode: f"{found.before:.1f}" for mode, found in rates.items()},
        "… per second, while Kafka was stopped": {mode: f"{found.during:.1f}" for mode, found in rates.items()},
        f"… per second, in {beside} after it was back": {mode: f"{found.after:.1f}" for mode, found in rates.items()},
        "longest pause in all of that, s": {mode: f"{found.pause:.1f}" for mode, found in rates.items()},
    }


def _refused(summary: Summary, error: str) -> Line:
    return {mode: f"{figures.refused.get(error, 0):,}" for mode, figures in summary.modes.items()}


def _messages(summary: Summary) -> dict[str, Line]:
    modes = summary.modes.items()
    return {
        "messages committed": {mode: f"{figures.told:,}" for mode, figures in modes},
        "… visible, sent to Kafka as halves": {mode: f"{figures.halves:,}" for mode, figures in modes},
        "… visible, inserted as rows": {mode: f"{figures.rows:,}" for mode, figures in modes},
        "lost, duplicated, phantom, out of order": {mode: _judged(figures.wrong) for mode, figures in modes},
    }
