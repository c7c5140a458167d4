"""Samples in short: percentiles, and the spread of repeated runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, Self


class Spread(NamedTuple):
    """Repeated runs in short."""

    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of one value for each run."""
        return cls(min(values), statistics.median(values), max(values))


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile of samples, between two of them by proportion.

    Args:
        values: At least two samples.
        percent: 1 to 99.
    """
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
