"""A figure: what was measured, beside its baseline from the same rounds, and whether its target is met."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.spread import Spread

Measure = Literal["ours", "ratio", "difference"]
Sense = Literal["at least", "at most"]

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach.

    Args:
        measure: Ours alone, or of ours to the baseline: their ratio, or ours less the baseline.
        sense: In which direction it is good.
    """

    measure: Measure
    sense: Sense
    value: float

    def is_met_by(self, value: float) -> bool:
        """Whether a measured ratio or difference reaches it."""
        return value >= self.value if self.sense == "at least" else value <= self.value


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure, from one value of ours and one of the baseline for each round.

    Args:
        name: Short name, never used twice.
        unit: Of ours and of the baseline: "ms", "transactions/s".
        baseline: What stands beside it, for people.
        ours: One value for each round.
        beside: The baseline's, from the same rounds.
        target: What should be reached; None if nothing was promised.
        not_measured: Why values are missing: of the baseline, or of both.
    """

    name: str
    title: str
    unit: str
    baseline: str
    ours: Sequence[float]
    beside: Sequence[float]
    target: Target | None = None
    not_measured: str | None = None

    def measured(self, measure: Measure) -> Spread:
        """Return the ratio or the difference of each round: noise that met both sides of a round falls out."""
        if measure == "ours":
            return Spread.of(self.ours)
        compare = operator.truediv if measure == "ratio" else operator.sub
        return Spread.of([compare(ours, beside) for ours, beside in zip(self.ours, self.beside, strict=True)])

    def met(self) -> bool | None:
        """Whether the median over the rounds reaches the target; None if there is none, or it was not measured."""
        if self.target is None or not self._is_measured(self.target.measure):
            return None
        return self.target.is_met_by(self.measured(self.target.measure).median)

    def record(self) -> dict[str, Any]:
        """For the results' file; what was not measured is None there."""
        spreads = {
            "ours": Spread.of(self.ours) if self.ours else None,
            "baseline": Spread.of(self.beside) if self.beside else None,
            "ratio": self.measured("ratio") if self._is_measured("ratio") else None,
            "difference": self.measured("difference") if self._is_measured("difference") else None,
        }
        medians = {name: spread and _short(spread.median) for name, spread in spreads.items()}
        return {
            "name": self.name,
            "title": self.title,
            "ours": medians["ours"],
            "unit": self.unit,
            "baseline": self.baseline,
            "baseline_value": medians["baseline"],
            "ratio": medians["ratio"],
            "difference": medians["difference"],
            "target": None if self.target is None else asdict(self.target),
            "met": self.met(),
            "runs": len(self.ours),
            "spread": {name: spread and _parts(spread) for name, spread in spreads.items()},
            "not_measured": self.not_measured,
        }

    def _is_measured(self, measure: Measure) -> bool:
        if measure == "ratio" and 0 in self.beside:
            return False  # none were lost, say: the difference tells
        return bool(self.ours) and (measure == "ours" or bool(self.beside))


def _parts(spread: Spread) -> dict[str, float]:
    return {part: _short(value) for part, value in spread._asdict().items()}


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
