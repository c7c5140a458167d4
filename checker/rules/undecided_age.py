"""The age of the oldest transaction that was asked about and has no decision. Pure; for people only.

It follows from the id, which begins with the time of an application's clock.
"""

from __future__ import annotations

from checker.rules.verdicts import CONSEQUENCES, Answers
from outbox.protocol.identifiers import created_ms

FORGET_MS = 1_200_000
"""A transaction without a check for this time was decided elsewhere; the relay's longest pause is half of it."""

MOST = 10_000
"""Transactions that are remembered."""


class Undecided:
    """What is asked about again and again in one database."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}

    def note(self, answers: Answers, now: int) -> None:
        """Take the answers of a batch.

        Args:
            answers: Verdicts by transaction id.
            now: Time, ms since 1970.
        """
        for id_, (verdict, _) in answers.items():
            self._asked.pop(id_, None)
            if CONSEQUENCES[verdict] is None and len(self._asked) < MOST:
                self._asked[id_] = now
        self._asked = {id_: asked for id_, asked in self._asked.items() if asked > now - FORGET_MS}

    def oldest_seconds(self, now: int) -> float:
        """Age of the oldest one, in seconds; 0: there is none."""
        return max(0.0, (now - min(map(created_ms, self._asked), default=now)) / 1_000)
