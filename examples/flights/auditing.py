"""The window that the demo audits, and its report, which may be kept among the documents."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from spark_jobs.auditing.report import latencies_chart, verdicts_chart

GRACE_MS = 5_000
"""A killed application's transaction is decided within; what takes longer is proven, and called late."""


@dataclass(frozen=True, slots=True)
class Window:
    """Append times of halves, ms since 1970.

    Args:
        stop: The first one behind.
    """

    start: int
    stop: int = 0

    @classmethod
    def begin(cls) -> Self:
        """Return a window from now on."""
        return cls(_now())

    def end(self) -> Self:
        """Return this window until now."""
        return replace(self, stop=_now() + 1)

    def is_closed(self) -> bool:
        """Whether the grace behind its end is over."""
        return _now() > self.stop + GRACE_MS

    def arguments(self) -> list[str]:
        """Return the options of `outbox audit`."""
        return ["--from", str(self.start), "--to", str(self.stop), "--grace-ms", str(GRACE_MS)]

    def save(self, path: Path) -> None:
        """Write it down."""
        path.write_text(json.dumps(asdict(self)))


def load_window(path: Path) -> Window:
    """Return the window that was written down."""
    return Window(**json.loads(path.read_text()))


def keep_report(audits: Path, documents: Path) -> None:
    """Keep the report of the one audit that was made, and two of its charts as pictures.

    Args:
        documents: Where `report.html`, `verdicts.svg` and `latencies.svg` go.
    """
    [audit] = audits.iterdir()
    summary = json.loads((audit / "summary.json").read_text())
    documents.mkdir(parents=True, exist_ok=True)
    shutil.copy(audit / "report.html", documents / "report.html")
    (documents / "verdicts.svg").write_text(verdicts_chart(summary["verdicts"]))
    (documents / "latencies.svg").write_text(_latencies(summary))


def _latencies(summary: Mapping[str, Any]) -> str:
    rows = {
        f"{share['service']} → {share['topic']}": share["latencies"]["half_to_visible_ms"]
        for share in summary["shares"]
        if share["latencies"]["half_to_visible_ms"] is not None
    }
    return latencies_chart("from the half to the real record", rows, summary["percentiles"])


def _now() -> int:
    return time.time_ns() // 1_000_000
