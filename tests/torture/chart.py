"""The faults of a run as a small SVG, the same each time it is drawn from the same report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
# Without these, each drawing would differ by random ids and by its date; text stays text.
mpl.rcParams.update({"svg.hashsalt": "outbox", "svg.fonttype": "none", "font.size": 9})

from matplotlib import pyplot as plt  # noqa: E402 - after the backend is chosen

_COLOUR = "#4c78a8"


def draw_faults(faults: Mapping[str, int], path: Path) -> None:
    """Draw how often each fault was met.

    Args:
        faults: Counts by name.
    """
    names = sorted(faults, key=lambda name: faults[name])
    picture, axes = plt.subplots(figsize=(8, 0.8 + 0.2 * len(names)), layout="constrained")
    bars = axes.barh(names, [faults[name] for name in names], color=_COLOUR)
    axes.bar_label(bars, padding=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("times")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, metadata={"Date": None})
    plt.close(picture)
