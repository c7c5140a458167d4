"""The demo's result: the same figures as a table on the terminal and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from examples.flights.kafka_outage import Span
from examples.flights.kills import AFTER_COMMIT, STEPS, Kill
from examples.flights.modes import Mode
from examples.flights.reconcile import Reconciliation
from examples.flights.side_by_side import ModeFigures


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that the demo found out.

    Args:
        told: Messages that the database says were told.
        outage: When there was no Kafka; None if it was not stopped.
        decided: Transactions that the checker decided, by kind.
        survived: Attempts that committed although their process was killed.
    """

    told: int
    modes: Mapping[Mode, ModeFigures]
    outage: Span | None
    decided: Counter[str]
    kills: Sequence[Kill]
    survived: AbstractSet[str]
    visible: Reconciliation
    landed: Reconciliation

    @property
    def committed(self) -> int:
        """Transactions that committed."""
        return sum(figures.committed for figures in self.modes.values())

    @property
    def rolled_back(self) -> int:
        """Transactions that were rolled back on purpose."""
        return sum(figures.rolled_back for figures in self.modes.values())

    def kills_by_step(self) -> dict[str, dict[str, int]]:
        """Per step: how many were killed, and how many of the transactions that they held committed."""
        table: dict[str, dict[str, int]] = {}
        for step in STEPS:
            kills = [kill for kill in self.kills if kill.step == step]
            committed = sum(kill.attempt in self.survived for kill in kills)
            table[step] = {"kills": len(kills), "committed": committed, "rolled_back": len(kills) - committed}
        return table

    def wrong_outcomes(self) -> list[Kill]:
        """Kills after which the transaction did not end as it must."""
        return [kill for kill in self.kills if (kill.attempt in self.survived) != (kill.step == AFTER_COMMIT)]

    def stalled(self) -> list[Mode]:
        """Modes that must go on without Kafka, and did not."""
        return [mode for mode, figures in self.modes.items() if figures.stalled and not mode.needs_kafka]

    def wrong_ways(self) -> list[Mode]:
        """Modes of which not each message is visible once, in the way that the mode sends it."""
        return [mode for mode, figures in self.modes.items() if not _went_right(mode, figures)]

    @property
    def clean(self) -> bool:
        """Whether nothing is lost, doubled, phantom or out of order, kills ended as they must, and no mode stalled."""
        places_clean = self.visible.clean and self.landed.clean
        return places_clean and not (self.wrong_outcomes() or self.wrong_ways() or self.stalled())

    def as_json(self) -> dict[str, Any]:
        """Return the figures of `summary.json`; what is wrong is counted over both places."""
        places = (self.visible, self.landed)
        return {
            "messages": self.told,
            "committed": self.committed,
            "rolled_back": self.rolled_back,
            "modes": {mode.value: figures.as_json() for mode, figures in self.modes.items()},
            "outage_seconds": round(self.outage.back - self.outage.start, 1) if self.outage else 0,
            "stalled": [mode.value for mode in self.stalled()],
            "wrong_ways": [mode.value for mode in self.wrong_ways()],
            "decided_by_check_back": self.decided.total(),
            "kills": len(self.kills),
            "kills_by_step": self.kills_by_step(),
            "visible": self.visible.seen,
            "landed": self.landed.seen,
            "lost": sum(len(place.lost) for place in places),
            "doubled": sum(len(place.doubled) for place in places),
            "phantom": sum(len(place.phantom) for place in places),
            "out_of_order": sum(len(place.out_of_order) for place in places),
            "wrong_outcomes": len(self.wrong_outcomes()),
        }


def _went_right(mode: Mode, figures: ModeFigures) -> bool:
    unexpected = {Mode.HALF: figures.rows, Mode.TABLE: figures.halves}[mode]
    return figures.told == figures.halves + figures.rows and unexpected == 0
