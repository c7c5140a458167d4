"""One run of measurements: each part's figures are printed and written as soon as they are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.figures import Figure
from benchmarks.results_file import write_results

console = Console()


class Run:
    """What was found so far; a later part may fail."""

    def __init__(self, output: Path, environment: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.series: dict[str, Any] = {}
        self._output = output
        self._environment = environment
        self._settings = settings
        self._figures: list[Figure] = []

    def measure(self, part: str, function: Callable[[], Sequence[Figure]]) -> None:
        """Measure one part."""
        began = time.monotonic()
        found = function()
        self._figures += found
        console.print(f"[bold]{part}[/bold], {time.monotonic() - began:.0f} s")
        for figure in found:
            _show(figure)
        write_results(self._output, self._environment, self._settings, self._figures, self.series)

    def end(self) -> None:
        """Say where the results are."""
        console.print(f"written: {self._output}; `python -m benchmarks.report` makes the document")


def _show(figure: Figure) -> None:
    record = figure.record()
    met = {None: "", True: ", target met", False: ", [bold]target missed[/bold]"}[record["met"]]
    ours = "not measured" if record["ours"] is None else f"{record['ours']:g} {record['unit']}"
    console.print(f"  {record['title']}: {ours}, {_beside(record)}{met}")


def _beside(record: Mapping[str, Any]) -> str:
    if not record["baseline"]:
        return "alone"
    value, spread = record["baseline_value"], record["spread"]["ratio"]
    beside = f"{record['baseline']} {'not measured' if value is None else f'{value:g}'}"
    if record["not_measured"]:
        return f"{beside} ({record['not_measured']})"
    if spread is None:
        return beside  # of nothing, nobody is a multiple
    return f"{beside} → ratio {record['ratio']:g} ({spread['minimum']:g} to {spread['maximum']:g})"
