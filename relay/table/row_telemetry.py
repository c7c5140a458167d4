"""What waits in the tables of sources, in metrics."""

import time

from relay import metrics

STALE_SECONDS = 15.0
"""Time after a look from which on the oldest row that it has seen is taken to wait still, or one that came since."""


Figures = tuple[float, int, int]
"""Age of the oldest row of a table in seconds, 0: none waits; how many wait; how many are discarded, up to 10,000."""


def table_figures(source: str, figures: Figures | None) -> None:
    """Show what waits in the table of a source, and what is discarded; None: that is not known."""
    if figures is None:
        table_unserved(source)
        return
    oldest_seconds, rows, discarded = figures
    _show_age(source, oldest_seconds)
    metrics.TABLE_ROWS.labels(source, metrics.UNDELIVERED).set(rows)
    metrics.TABLE_ROWS.labels(source, metrics.DISCARDED_ROWS).set(discarded)


def _show_age(source: str, seconds: float) -> None:
    looked = time.monotonic()

    def age() -> float:
        passed = time.monotonic() - looked
        return seconds if passed < STALE_SECONDS else seconds + passed

    metrics.TABLE_OLDEST_SECONDS.labels(source).set_function(age)


def table_unserved(source: str) -> None:
    """Remove the figures of a table that is not looked at, and let the age of its oldest row grow: it may wait."""
    metrics.TABLE_ROWS.remove_by_labels({"source": source})
    if not any(labels["source"] == source for labels in metrics.TABLE_OLDEST_SECONDS.of_channel()):
        _show_age(source, 0.0)


def forget_table(source: str) -> None:
    """Remove the figures of a table that this process does not look at: those of earlier would mislead."""
    for gauge in (metrics.TABLE_OLDEST_SECONDS, metrics.TABLE_ROWS):
        gauge.remove_by_labels({"source": source})
