"""A chart of the landed departures, per carrier."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

from examples.flights.application import DEPARTURES
from examples.flights.plan import LATE_MINUTES


def draw_chart(rows: Iterable[Mapping[str, Any]], picture: Path) -> None:
    """Draw landed departures per carrier, with the share that was late, as a PNG."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the backend is chosen

    departures: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for row in rows:
        if row["topic"] == DEPARTURES:
            body = json.loads(row["value"])
            departures[body["carrier"]] += 1
            late[body["carrier"]] += (body["delay"] or 0) >= LATE_MINUTES
    carriers = [carrier for carrier, _ in departures.most_common()]
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    axes.bar(carriers, [departures[carrier] for carrier in carriers], color="#4c78a8", label="departures")
    axes.bar(
        carriers, [late[carrier] for carrier in carriers], color="#e45756", label=f"{LATE_MINUTES} min late or more"
    )
    axes.set_title(f"{departures.total():,} departures landed through Kafka, per carrier")
    axes.set_xlabel("carrier")
    axes.set_ylabel("departures")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(picture, dpi=120)
    plt.close(figure)
