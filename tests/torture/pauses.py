"""How long messages take from COMMIT until a reader sees them, while something happens (I18). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tests.torture.diary import COMMITTED, Entry
from tests.torture.evidence import SHORT


class Step(NamedTuple):
    """What happens until the next step begins.

    Args:
        longest: So much slower than in the first step a message may be, in seconds.
    """

    name: str
    began: float
    longest: float


class Pauses:
    """The slowest messages of all steps.

    Attributes:
        slowest: Seconds, by step, mode, and whether the topic was short.
        transactions: How many were measured, likewise.
    """

    def __init__(self) -> None:
        self.slowest: dict[str, float] = {}
        self.transactions: Counter[str] = Counter()

    def judge(
        self, steps: Sequence[Step], diary: Collection[Entry], arrived: Mapping[str, float], now: float
    ) -> list[str]:
        """Measure a round; return what took too long. What has not arrived yet has taken until now.

        Args:
            steps: In their order; in the first one nothing happens.
            arrived: When the last message of a transaction was seen, by the application's id.
        """
        found: list[str] = []
        quiet = 0.0
        for step, end in zip(steps, [*(step.began for step in steps[1:]), now], strict=False):
            slowest = 0.0
            for entry in diary:
                if entry.kind == COMMITTED and step.began <= entry.at < end:
                    seconds = arrived.get(entry.told, now) - entry.at
                    name = f"{step.name}, mode {entry.mode}{', the short topic' * (entry.topic == SHORT)}"
                    self.transactions[name] += 1
                    self.slowest[name] = max(self.slowest.get(name, 0.0), round(seconds, 1))
                    if entry.topic == SHORT:
                        continue
                    slowest = max(slowest, seconds)
                    if seconds > quiet + step.longest:
                        found.append(f"{name}: {entry.told} came {seconds:.1f} s after COMMIT, before {quiet:.1f} s")
            quiet = quiet or slowest
        return found
