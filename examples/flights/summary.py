"""The demo's result: the same figures as a table on the terminal and as JSON. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.flights.kills import STEPS, Kill
from examples.flights.reconcile import Reconciliation

EXPECTED_STATES = {"after the half": "R", "before COMMIT": "R", "after COMMIT": "C"}
OUTCOMES = {"R": "rolled back by the fence", "C": "delivered by check-back", None: "undecided"}


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that the demo found out.

    Args:
        told: Messages that the database says were told.
        committed: Transactions that committed.
        rolled_back: Transactions that rolled back on purpose.
        decided: Transactions that the checker decided, by kind.
        kills: Processes that were killed.
        states: State of the killed transactions in the callback table.
        visible: What was found on the topics.
        landed: What was found in the landed table.
    """

    told: int
    committed: int
    rolled_back: int
    decided: Counter[str]
    kills: Sequence[Kill]
    states: Mapping[str, str]
    visible: Reconciliation
    landed: Reconciliation

    def kills_by_step(self) -> dict[str, dict[str, int]]:
        """Per step: how many were killed, and what became of the transactions that they held."""
        table: dict[str, dict[str, int]] = {}
        for step in STEPS:
            outcomes = Counter(
                OUTCOMES[self.states.get(kill.transaction_id)] for kill in self.kills if kill.step == step
            )
            table[step] = {"kills": outcomes.total(), **outcomes}
        return table

    def wrong_outcomes(self) -> list[Kill]:
        """Kills after which the transaction did not end as it must."""
        return [kill for kill in self.kills if self.states.get(kill.transaction_id) != EXPECTED_STATES[kill.step]]

    @property
    def clean(self) -> bool:
        """Whether nothing is lost, doubled, phantom or out of order, and every kill ended as it must."""
        return self.visible.clean and self.landed.clean and not self.wrong_outcomes()

    def as_json(self) -> dict[str, Any]:
        """Return the figures of `summary.json`; what is wrong is counted over both places."""
        places = (self.visible, self.landed)
        return {
            "messages": self.told,
            "committed": self.committed,
            "rolled_back": self.rolled_back,
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
