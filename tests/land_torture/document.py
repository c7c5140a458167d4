"""`python -m tests.land_torture.document`: writes what reports kept by `--keep` say into docs/spark/land.md."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tests.documents import filled_place

FOLDER = Path(__file__).parent / "results"
SPARK = Path(__file__).parents[2] / "docs/spark/land.md"
PLACE = "torture of land"

_FIGURES = {
    "kills": "kills of driver or Java process",
    "commits_deleted": "last file of `commits` deleted",
    "partitions_added": "partitions added to a topic",
    "batches": "batches",
    "batches_replayed_after_they_were_landed": "of them handed over again after they were landed",
    "records_committed": "records committed",
    "records_aborted": "records aborted",
    "transactions_that_stayed_open": "transactions that stayed open for seconds",
    "seconds": "seconds",
}


def kept() -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))]


def described(reports: Sequence[Mapping[str, Any]]) -> str:
    runs = [run for report in reports for run in report["runs"]]
    if not runs:
        return "\nNo report is kept yet.\n\n"
    points = sorted({point for run in runs for point in run["kills_by_point"]})
    rows = [
        ["", *(f"{run['sink']}, seed {run['seed']}" for run in runs)],
        ["---"] * (len(runs) + 1),
        *([title, *(f"{run[name]:,}" for run in runs)] for name, title in _FIGURES.items()),
        *([f"killed: {point}", *(str(run["kills_by_point"].get(point, "")) for run in runs)] for point in points),
        ["**violations**", *(f"**{run['violations']:,}**" for run in runs)],
    ]
    sources = [f"- `{report['command']}`, commit `{report['commit']}`, {report['date']}" for report in reports]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n".join(["", *sources, "", table, "", ""])


def written(text: str, reports: Sequence[Mapping[str, Any]]) -> str:
    return filled_place(text, PLACE, described(reports))


def main(report: Annotated[Path | None, typer.Option("--keep", help="A report to keep first.")] = None) -> None:
    """Write the table of docs/spark/land.md from the reports that are kept."""
    if report is not None:
        content = json.loads(report.read_text())
        name = "-".join([content["date"][:10], *(run["sink"] for run in content["runs"])])
        FOLDER.mkdir(exist_ok=True)
        shutil.copy(report, FOLDER / f"{name}.json")
    SPARK.write_text(written(SPARK.read_text(), kept()))


if __name__ == "__main__":
    typer.run(main)
