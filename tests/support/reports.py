"""What commands that torture do with their result: show it, keep it, and end with 2 if something is wrong."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

CONSOLE = Console(width=None if sys.stdout.isatty() else 120)
_MACHINE = {"system": "S", "processor": "P", "cores": 2, "memory_gib": 3.5, "load_before": 0.1}
PLACE = {"date": "2026-01-01T00:00:00+00:00", "commit": "abc", "machine": _MACHINE}  # of reports that tests make up


def say_since_now() -> Callable[[str], None]:
    began = time.monotonic()

    def say(text: str) -> None:
        CONSOLE.print(f"{time.monotonic() - began:6.0f} s  {text}", markup=False, highlight=False)

    return say


def figures(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table("figure", "value", title=title)
    for row in rows:
        table.add_row(*row)
    return table


def finish(report: Path, content: Mapping[str, Any], *tables: Table, wrong: object) -> None:
    """Write a report and show its tables; end with 2 if something is wrong."""
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    for table in tables:
        CONSOLE.print(table)
    CONSOLE.print(f"report: {report}")
    if wrong:
        raise SystemExit(2)
