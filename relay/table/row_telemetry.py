"""What waits in the tables of sources, in logs and metrics."""

import heapq
import time
from collections.abc import Mapping

import structlog

from relay import metrics

SERVICES = 10
"""Services whose rows wait that are logged at once."""
WARN_SECONDS = 60.0
"""Time until it is logged again that rows wait."""
STALE_SECONDS = 15.0
"""Time after a look from which on the oldest row that it has seen is taken to wait still, or one that came since."""

log = structlog.get_logger()

Figures = tuple[float, float, int, int, int, int]
"""Age of the oldest row of a table, and of what keeps dead rows from being vacuumed, in seconds, 0: none; how many rows
wait; how many are discarded, up to 10,000; how many of these will soon be deleted; and how many are dead."""


class RowsThatWait:
    """Logs again and again which rows of a table source wait for which real topics: those who published do not know."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._due: dict[tuple[str, str], float] = {}

    def warn(self, rows: Mapping[tuple[str, str], int], now: float) -> None:
        """Log the most numerous of them, each once a minute.

        Args:
            rows: How many rows wait, by topic and service.
            now: Monotonic seconds.
        """
        self._due = {place: due for place, due in self._due.items() if place in rows and now < due}
        for place in heapq.nlargest(SERVICES, rows, key=rows.__getitem__):
            if place not in self._due:
                self._due[place] = now + WARN_SECONDS
                topic, service = place
                log.warning(
                    "Rows wait for a real topic", source=self._source, topic=topic, service=service, rows=rows[place]
                )


def table_figures(source: str, figures: Figures | None) -> None:
    """Show what waits in the table of a source, and what is discarded; None: that is not known."""
    if figures is None:
        table_unserved(source)
        return
    oldest_seconds, snapshot_seconds, *counts = figures
    _show_age(source, oldest_seconds)
    metrics.TABLE_OLDEST_SECONDS.labels(source, metrics.SNAPSHOT).set(snapshot_seconds)
    for state, count in zip(metrics.SEEN_ROWS, counts, strict=True):
        metrics.TABLE_ROWS.labels(source, state).set(count)


def _show_age(source: str, seconds: float) -> None:
    looked = time.monotonic()

    def age() -> float:
        passed = time.monotonic() - looked
        return seconds if passed < STALE_SECONDS else seconds + passed

    metrics.TABLE_OLDEST_SECONDS.labels(source, metrics.ROW).set_function(age)


def table_unserved(source: str) -> None:
    """Remove the figures of a table that is not looked at, and let the age of its oldest row grow: it may wait."""
    metrics.TABLE_ROWS.remove_by_labels({"source": source})
    metrics.TABLE_OLDEST_SECONDS.remove_by_labels({"source": source, "kind": metrics.SNAPSHOT})
    if not any(labels["source"] == source for labels in metrics.TABLE_OLDEST_SECONDS.of_channel()):
        _show_age(source, 0.0)


def forget_table(source: str) -> None:
    """Remove the figures of a table that this process does not look at: those of earlier would mislead."""
    for gauge in (metrics.TABLE_OLDEST_SECONDS, metrics.TABLE_ROWS):
        gauge.remove_by_labels({"source": source})
