"""How long messages take from COMMIT until a reader sees them, while something happens (I18). Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from tests.support.spans import Span, covered
from tests.torture.diary import COMMITTED, Entry
from tests.torture.evidence import SHORT


class Step(NamedTuple):
    name: str
    began: float
    longest: float  # so much slower than in the first step a message may be, in seconds


class Arrival(NamedTuple):
    """When the last message of a transaction was seen, and the half partition or table source that it came through."""

    at: float
    owner: str


class Pauses:
    def __init__(self) -> None:
        self.slowest: dict[str, float] = {}  # seconds, by step, mode, and whether the topic was short
        self.transactions: Counter[str] = Counter()  # how many were measured, likewise

    def judge(
        self,
        steps: Sequence[Step],  # in their order; in the first one nothing happens
        diary: Collection[Entry],
        arrived: Mapping[str, Arrival],  # by the application's id of a transaction
        now: float,
        waits: Callable[[str], Sequence[Span]],
    ) -> list[str]:
        """Measure a round; return what took too long, also what has not arrived, longer than Kafka itself `waits`."""
        found: list[str] = []
        quiet = 0.0
        for step, end in zip(steps, [*(step.began for step in steps[1:]), now], strict=False):
            slowest = 0.0
            for entry in diary:
                if entry.kind == COMMITTED and step.began <= entry.at < end:
                    end_at, owner = arrived.get(entry.told, Arrival(now, ""))
                    seconds = end_at - entry.at
                    name = f"{step.name}, mode {entry.mode}{', the short topic' * (entry.topic == SHORT)}"
                    self.transactions[name] += 1
                    self.slowest[name] = max(self.slowest.get(name, 0.0), round(seconds, 1))
                    if entry.topic == SHORT:
                        continue
                    slowest = max(slowest, seconds)
                    kafkas = covered(waits(owner), entry.at, end_at) if seconds > quiet + step.longest else 0.0
                    if seconds > quiet + step.longest + kafkas:
                        found.append(
                            f"{name}: {entry.told} came {seconds:.1f} s after COMMIT, before {quiet:.1f} s, "
                            f"Kafka took nothing of {owner or 'its owner'} for {kafkas:.1f} s"
                        )
            quiet = quiet or slowest
        return found
