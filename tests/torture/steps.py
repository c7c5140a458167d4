"""Rounds in which brokers go away one after the other, and nothing else happens."""

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from tests.support.spans import Span
from tests.torture.diary import Entry
from tests.torture.pauses import Arrival, Pauses, Step
from tests.torture.world import BROKERS, World

QUIET_SECONDS = 15.0
"""So long all goes well at first: how slow messages are then is what the machine's load costs."""

LEAD_SECONDS = 3.0
"""A step begins so long before its broker leaves: what was committed just before is delayed by it, too."""

AFTER_SECONDS = 8.0
"""From the return of a broker to the next step."""


class Kind(NamedTuple):
    name: str
    ways: tuple[str, ...]  # how brokers leave, one after the other; the order is chosen
    away: tuple[float, float]
    longest: float  # so much slower than without a step a message may be, in seconds
    short_share: float  # share of transactions for the topic of two replicas, which are not measured


ROLLING = Kind("rolling restart", ("stopped", "stopped", "killed"), (5.0, 15.0), 10.0, 0.0)
SHORT = Kind("short topic", ("killed", "killed"), (45.0, 45.0), 20.0, 0.2)
"""Longer, because a Kafka transaction that wrote to the topic before anybody could know waits for 10 s."""

KINDS = {kind.name.partition(" ")[0]: kind for kind in (ROLLING, SHORT)}


class Steps:
    """Runs such rounds. `meanwhile`: is called all the time; it takes a while itself."""

    def __init__(self, world: World, chance: random.Random, meanwhile: Callable[[], None]) -> None:
        self.faults: Counter[str] = Counter()
        self.pauses = Pauses()
        self._kafka = world.stack.kafka
        self._chance = chance
        self._meanwhile = meanwhile
        self._steps: list[Step] = []

    def run(self, kind: Kind) -> None:
        self._steps = [Step(f"before a {kind.name}", time.time(), math.inf)]
        self._let_pass(QUIET_SECONDS)
        nodes = self._chance.sample(range(BROKERS), len(kind.ways))
        with ThreadPoolExecutor(1) as pool:
            for node, way in zip(nodes, self._chance.sample(kind.ways, len(kind.ways)), strict=True):
                name = f"{kind.name}: broker {way}"
                self._steps.append(Step(name, time.time(), kind.longest))
                self._let_pass(LEAD_SECONDS)
                self._wait_for(pool.submit({"stopped": self._kafka.stop, "killed": self._kafka.kill}[way], node))
                self.faults[name] += 1
                self._let_pass(self._chance.uniform(*kind.away))
                self._wait_for(pool.submit(self._kafka.start, node))
                self._let_pass(AFTER_SECONDS)

    def take_found(
        self, diary: Collection[Entry], arrived: Mapping[str, Arrival], waits: Callable[[str], Sequence[Span]]
    ) -> list[str]:
        """What was too slow in the last round of steps, by when transactions arrived and Kafka made them wait."""
        steps, self._steps = self._steps, []
        return self.pauses.judge(steps, diary, arrived, time.time(), waits)

    def _let_pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._meanwhile()

    def _wait_for(self, done: Future[None]) -> None:
        while not done.done():
            self._meanwhile()
        done.result()
