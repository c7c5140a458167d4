"""The demo's result as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from examples.flights.kafka_outage import SECONDS
from examples.flights.modes import WORKERS, Mode
from examples.flights.reconcile import Reconciliation
from examples.flights.side_by_side import ModeFigures
from examples.flights.summary import Summary


def show(summary: Summary, console: Console) -> None:
    """Print everything that the demo found out."""
    console.print(_places(summary))
    console.print(_kills(summary))
    console.print(_modes(summary))
    decided = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.decided.items()))
    console.print(
        f"{summary.committed:,} transactions committed, {summary.rolled_back:,} rolled back; "
        f"{summary.decided.total()} decided by check-back ({decided})"
    )
    for mode in summary.stalled():
        console.print(f"[red]{mode} mode committed nothing while Kafka was stopped[/]")


def _places(summary: Summary) -> Table:
    table = Table("place", "messages", "lost", "duplicated", "phantom", "out of order", title="reconciliation")
    table.add_row("Postgres (truth)", f"{summary.told:,}", "", "", "", "")
    table.add_row("real topics, read_committed", *_cells(summary.visible))
    table.add_row("landed by Spark", *_cells(summary.landed))
    return table


def _cells(place: Reconciliation) -> list[str]:
    counts = [len(place.lost), len(place.doubled), len(place.phantom), len(place.out_of_order)]
    return [f"{place.seen:,}", *(f"[{'red' if count else 'green'}]{count}[/]" for count in counts)]


def _kills(summary: Summary) -> Table:
    table = Table("killed", "times", "rolled back", "committed", title="application processes killed")
    for step, outcomes in summary.kills_by_step().items():
        table.add_row(step, *(str(outcomes[name]) for name in ("kills", "rolled_back", "committed")))
    return table


def _modes(summary: Summary) -> Table:
    table = Table("", *(f"{mode} mode" for mode in Mode), title="the modes side by side")
    for name, value in _lines(summary).items():
        table.add_row(name, *(f"{value[mode]:,}" for mode in Mode))
    return table


def _lines(summary: Summary) -> dict[str, dict[Mode, int]]:
    def each(name: str) -> dict[Mode, int]:
        return {mode: getattr(summary.modes[mode], name) for mode in Mode}

    lines = {
        "processes": dict.fromkeys(Mode, WORKERS),
        "killed and started again": each("killed"),
        "transactions committed": each("committed"),
    }
    if summary.outage is not None:
        lines[f"… in the {SECONDS:.0f} s without Kafka"] = each("in_outage")
    return {
        **lines,
        "attempts refused, tried again": each("refused"),
        "messages delivered": each("messages"),
        "… sent to Kafka as halves": {mode: _halves(summary.modes[mode]) for mode in Mode},
        "… inserted as rows": each("rows"),
    }


def _halves(figures: ModeFigures) -> int:
    return figures.messages - figures.rows
