"""A run: the job is killed again and again while records come; then it runs to its end, and the table is checked."""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.land_torture.gathering import gather
from tests.land_torture.invariants import RULES, Violation, check
from tests.land_torture.job import Job, UnexpectedEndError
from tests.land_torture.points import POINTS, in_turn
from tests.land_torture.traffic import Traffic
from tests.support.harness import Site

ROUND_KILLS = 15
"""Kills until the table is checked."""

GROW_EVERY = 7
"""After every seventh kill a topic gets one more partition, up to the most."""

MOST_PARTITIONS = 8

_REPLAYED = '"event": "Batch was landed before"'

Say = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """What came of a run."""

    sink: str
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    commits_deleted: int = 0  # how often the last file of `commits` was
    partitions_added: int = 0
    replayed: int = 0  # batches that Spark handed over again after they were landed
    batches: int = 0
    committed: int = 0
    aborted: int = 0
    lingering: int = 0
    checks: int = 0
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        return {
            "sink": self.sink,
            "seed": self.seed,
            "seconds": round(self.seconds),
            "kills": self.kills.total(),
            "kills_by_point": dict(sorted(self.kills.items())),
            "commits_deleted": self.commits_deleted,
            "partitions_added": self.partitions_added,
            "batches": self.batches,
            "batches_replayed_after_they_were_landed": self.replayed,
            "records_committed": self.committed,
            "records_aborted": self.aborted,
            "transactions_that_stayed_open": self.lingering,
            "checks": self.checks,
            "invariants": list(RULES),
            "violations": len(self.violations),
            "found": [list(violation) for violation in self.violations],
        }


class Run:
    """One run with one sink."""

    def __init__(self, site: Site, sink: str, seed: int, job: Job, traffic: Any, say: Say) -> None:
        self.result = Result(sink, seed)
        self._site = site
        self._say = say
        self._chance = random.Random(seed)
        self._points = in_turn(POINTS[sink], self._chance)
        self._job = job
        self._traffic = traffic

    def run(self, kills: int, stopped: Callable[[], bool] = lambda: False) -> Result:
        """Rounds until the job was killed so many times, something is found, or it is to end sooner (`stopped`)."""
        began = time.monotonic()
        try:
            while (left := kills - self.result.kills.total()) > 0 and not (self.result.violations or stopped()):
                with self._traffic.on():
                    for _ in range(min(left, ROUND_KILLS)):
                        if not stopped():
                            self._kill()
                self._job.finish()
                self._job.forget_commit()
                self.result.commits_deleted += 1
                self._job.finish()  # it repeats the last batch
                self._check()
        except UnexpectedEndError as error:
            self.result.violations.append(Violation("the job ends only when it is killed or done", str(error)))
        self.result.seconds = time.monotonic() - began
        return self.result

    def _kill(self) -> None:
        point = next(self._points)
        self._job.kill_at(point, self._chance)
        self.result.kills[point.name] += 1
        killed = self.result.kills.total()
        self._say(f"{self.result.sink}: killed {killed} times, last: {point.name}")
        if killed % GROW_EVERY == 0:
            self._grow()

    def _grow(self) -> None:
        raise NotImplementedError

    def _check(self) -> None:
        raise NotImplementedError

    def _note(self, found: int) -> None:
        """Note a check, which found this number of records in the sink."""
        result, traffic = self.result, self._traffic
        result.checks += 1
        result.committed, result.aborted, result.lingering = traffic.committed, traffic.aborted, traffic.lingering
        self._say(f"{result.sink}: {found} records written, {len(result.violations)} violations")


class LandRun(Run):
    """One run of `outbox land`, or of the naive job. `folder`: for table, checkpoint and log; it must not exist yet."""

    def __init__(self, site: Site, sink: str, seed: int, folder: Path, say: Say) -> None:
        site.create_topics("orders", "stock", partitions=3)
        self._partitions = {site.topic("orders"): 3, site.topic("stock"): 3}
        topics = list(self._partitions)
        job = Job.landing(site, topics, folder, naive=sink == "naive")
        super().__init__(site, sink, seed, job, Traffic(site, topics, seed), say)

    def _grow(self) -> None:
        topic = min(self._partitions, key=lambda name: self._partitions[name])
        if self._partitions[topic] < MOST_PARTITIONS:
            self._partitions[topic] = self._traffic.grow(topic)
            self.result.partitions_added += 1

    def _check(self) -> None:
        result = self.result
        evidence = gather(self._site, list(self._partitions), self._job.table, self._traffic.committed)
        result.violations += check(evidence)
        result.batches = len(evidence.commits)
        result.replayed = self._job.log.read_text(errors="replace").count(_REPLAYED)
        self._note(len(evidence.landed))
