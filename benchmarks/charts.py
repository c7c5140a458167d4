"""Charts of results, as small SVGs that say the same each time they are drawn from the same file."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
# Without these, each drawing would differ by random ids and by its date; text stays text.
mpl.rcParams.update({"svg.hashsalt": "outbox", "svg.fonttype": "none", "font.size": 9})

from matplotlib import pyplot as plt  # noqa: E402 - after the backend is chosen

_OURS = "#4c78a8"
_BASELINE = "#bab0ac"
_TARGET = "#e45756"
_KINDS = (_OURS, "#f2cf5b", _BASELINE)
_LABEL_CHARACTERS = 64
"""A longer line beside a chart would leave it no room."""


def draw_ratios(figures: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the ratio of each figure to its baseline, with the spread over the rounds and the target.

    Args:
        figures: Records of the results' file; those without a ratio are left out.
    """
    figures = [figure for figure in figures if figure["ratio"] is not None]
    labels = [_wrapped(figure["title"]) + "\n" + _wrapped(f"vs {figure['baseline']}") for figure in figures]
    lines = max((label.count("\n") + 1 for label in labels), default=1)
    picture, axes = plt.subplots(figsize=(8, 0.6 + 0.21 * lines * len(figures)), layout="constrained")
    for place, figure in enumerate(figures):
        spread = figure["spread"]["ratio"]
        axes.plot([spread["minimum"], spread["maximum"]], [place, place], color=_OURS, linewidth=2)
        axes.plot([figure["ratio"]], [place], "o", color=_OURS)
        target = figure["target"]
        if target is not None and target["measure"] == "ratio":
            axes.plot([target["value"]], [place], "|", color=_TARGET, markersize=16, markeredgewidth=2)
    axes.axvline(1, color=_BASELINE, linewidth=1)
    axes.set_yticks(range(len(figures)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("times the baseline: dot = median,\nline = min to max over the rounds, red = target")
    _save(axes, picture, path)


def draw_costs(costs: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw what a row costs, a bar for each way to deliver it and a part of it for each kind of process.

    Args:
        costs: Microseconds by kind of process, by way.
    """
    picture, axes = plt.subplots(figsize=(8, 0.9 + 0.5 * len(costs)), layout="constrained")
    left = [0.0] * len(costs)
    kinds = list(dict.fromkeys(kind for parts in costs.values() for kind in parts))
    for kind, color in zip(kinds, _KINDS, strict=False):
        widths = [parts.get(kind, 0.0) for parts in costs.values()]
        axes.barh(range(len(costs)), widths, left=left, color=color, label=kind)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(costs)), map(_wrapped, costs))
    axes.invert_yaxis()
    axes.set_xlabel("µs of CPU for a row")
    axes.legend(frameon=False)
    _save(axes, picture, path)


def draw_growth(series: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw resident memory over the number of transactions.

    Args:
        series: Columns `transactions` and `resident_mib`.
    """
    picture, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
    axes.plot(series["transactions"], series["resident_mib"], color=_OURS)
    axes.set_ylim(bottom=0, top=max(series["resident_mib"]) * 1.2)
    axes.set_xlabel("transactions through one outbox")
    axes.set_ylabel("resident memory, MiB")
    _save(axes, picture, path)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _LABEL_CHARACTERS)


def _save(axes: Any, picture: Any, path: Path) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, metadata={"Date": None})
    plt.close(picture)
