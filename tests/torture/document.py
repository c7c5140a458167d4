"""`python -m tests.torture.document`: makes docs/torture.md, and its chart, from the reports that are kept.

A report is kept with `--keep build/torture/report.json`. No figure in the document is typed by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from jinja2 import Environment, StrictUndefined

from tests.torture.chart import draw_faults
from tests.torture.outage import OutageResult

FOLDER = Path(__file__).parent / "results"

_TEMPLATE = Path(__file__).with_name("document.md.j2")

_RULE = "With 95 % confidence less than 3/n (rule of three, for independent trials)"


def document(reports: Sequence[Mapping[str, Any]], charts: Path) -> str:
    """Return the document, and draw its charts.

    Args:
        charts: Folder for the charts, beside the document.
    """
    runs = sorted((report for report in reports if not _is_of_outage(report)), key=lambda report: str(report["date"]))
    for report in runs:
        draw_faults(report["faults"], charts / f"seed-{report['seed']}.svg")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown
    environment.filters |= {"verdict": verdict, "rate": _rate, "number": "{:,}".format}
    outages = [OutageResult(**report) for report in reports if _is_of_outage(report)]
    text = environment.from_string(_TEMPLATE.read_text()).render(runs=runs, outages=outages, charts=charts.name)
    return text.strip() + "\n"


def _is_of_outage(report: Mapping[str, Any]) -> bool:
    return "decided_seconds" in report


def verdict(report: Mapping[str, Any]) -> str:
    """What a run says of the rate of violations; with a violation it says no more than that."""
    count, transactions = report["violations"], report["transactions"]
    if count:
        return f"**{count:,} violations in {transactions:,} transactions.**"
    return (
        f"**0 violations in {transactions:,} transactions.**\n{_RULE}: the rate is below "
        f"3/{transactions:,} = {_rate(transactions)} of a violation for each transaction."
    )


def _rate(trials: int) -> str:
    """The bound of the rule of three."""
    return f"{min(3 / trials, 1):.2g}" if trials else "1"


_PLACE = re.compile(r" --report [^\s\"]+")


def keep(report: Path, folder: Path) -> Path:
    """Keep a report, without the place where the run left it; return where it lies now."""
    content = json.loads(report.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    if _is_of_outage(content):
        name = f"{content['environment']['date'][:10]}-outage.json"
    else:
        name = f"{content['date'][:10]}-seed-{content['seed']}.json"
    kept = folder / name
    kept.write_text(_PLACE.sub("", report.read_text()))
    return kept


Folder = Annotated[Path, typer.Option(help="Folder with the reports that are kept.")]
Document = Annotated[Path, typer.Option(help="The document; its charts lie beside it.")]
Report = Annotated[Path | None, typer.Option("--keep", help="A report to keep first.")]


def main(results: Folder = FOLDER, path: Document = Path("docs/torture.md"), report: Report = None) -> None:
    """Make the document from the reports that are kept."""
    if report is not None:
        keep(report, results)
    reports = [json.loads(file.read_text()) for file in sorted(results.glob("*.json"))]
    path.write_text(document(reports, path.with_suffix("")))


if __name__ == "__main__":
    typer.run(main)
