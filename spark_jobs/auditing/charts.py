"""The charts of an audit's report, as SVGs within its page; the same each time from the same summary."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from spark_jobs.records.audit_verdicts import Proof, Verdict

# Without these each drawing would differ by random ids and by its date; text stays text.
_STYLE: Any = {"svg.hashsalt": "outbox", "svg.fonttype": "none", "font.size": 9}
_COLOURS = {
    Proof.PROVEN: "#4c78a8",
    Proof.FINDING: "#e45756",
    Proof.UNPROVABLE: "#bab0ac",
    Proof.PASSED_OVER: "#d7d3d0",
}
_LEVELS = ("#4c78a8", "#72b7b2", "#f58518", "#e45756")


def verdicts_chart(counts: Mapping[str, int]) -> str:
    """Messages by verdict, on a logarithmic scale: one that is lost is seen beside a million that are not."""
    names = list(counts)[::-1]
    with mpl.rc_context(_STYLE):
        picture = Figure(figsize=(8, 0.8 + 0.28 * len(names)), layout="constrained")
        axes = picture.subplots()
        colours = [_COLOURS[Verdict[name].weight] for name in names]
        bars = axes.barh(names, [counts[name] for name in names], color=colours)
        axes.bar_label(bars, labels=[f"{counts[name]:,}" for name in names], padding=3)
        axes.set_xscale("symlog")
        axes.margins(x=0.15)
        axes.set_xlabel("messages")
        return _svg(picture, axes)


def latencies_chart(title: str, rows: Mapping[str, Sequence[int]], percentiles: Sequence[float]) -> str:
    """Latencies at percentiles, a line for each row.

    Args:
        rows: ms at the percentiles, by name.
        percentiles: From 0 to 1.
    """
    with mpl.rc_context(_STYLE):
        picture = Figure(figsize=(8, 1.1 + 0.28 * len(rows)), layout="constrained")
        axes = picture.subplots()
        for number, percentile in enumerate(percentiles):
            values = [row[number] for row in rows.values()]
            label = "max" if percentile == 1 else f"p{percentile * 100:g}"
            axes.plot(values, list(rows), "o", color=_LEVELS[number % len(_LEVELS)], label=label)
        axes.set_xscale("symlog")
        axes.set_xlim(left=0)
        axes.invert_yaxis()
        axes.margins(y=0.2)
        axes.set_xlabel(f"{title}, ms")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=len(percentiles), frameon=False)
        return _svg(picture, axes)


def _svg(picture: Figure, axes: Any) -> str:
    axes.spines[["top", "right"]].set_visible(False)
    drawing = io.StringIO()
    picture.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue()[drawing.getvalue().index("<svg") :]
