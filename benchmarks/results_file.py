"""The results of a run: one JSON file, from which the report is made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure

FOLDER = Path(__file__).parent / "results"
LATEST = "latest.json"


def write_results(
    path: Path,
    environment: Mapping[str, Any],
    settings: Mapping[str, Any],
    figures: Iterable[Figure],
    series: Mapping[str, Any],
) -> None:
    """Write the results of a run.

    Args:
        path: The file; one that is there is replaced.
        settings: What the run was told: counts, sizes, threads.
        series: Samples along the way, by name.
    """
    records = [figure.record() for figure in figures]
    names = [record["name"] for record in records]
    if len(names) != len(set(names)):
        raise ValueError(f"a figure's name is used twice: {', '.join(names)}")
    results = {**environment, "settings": settings, "figures": records, "series": series}
    write_json(path, results)


def write_json(path: Path, results: Mapping[str, Any]) -> None:
    """Write results as they are.

    Args:
        path: The file; one that is there is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def read_results(path: Path) -> dict[str, Any]:
    """Read the results of a run."""
    results: dict[str, Any] = json.loads(path.read_text())
    return results
