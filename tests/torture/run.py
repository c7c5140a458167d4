"""A run: rounds of faults, each healed and then checked."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from outbox.protocol.discard import DiscardReason
from stack import StartError
from tests.support.harness import wait_until
from tests.support.plain_records import PlainRecords
from tests.support.spans import Span, merged
from tests.torture.cruelty import Cruelty
from tests.torture.database import MINUTE
from tests.torture.diary import Diary
from tests.torture.evidence import Evidence
from tests.torture.gathering import Gathering
from tests.torture.held import held_owners
from tests.torture.hostile.assault import Assault
from tests.torture.invariants import INVARIANTS, WATCHED, Violation, check
from tests.torture.log import Reader
from tests.torture.observers import Observers
from tests.torture.processes import SHORT_SHARE, Processes
from tests.torture.steps import ROLLING, SHORT, Kind, Steps
from tests.torture.world import World, started

ROUND_SECONDS = 120.0
"""So long there are faults, then there are none until all is settled."""

HEALED_SECONDS = 120.0
"""I3: after healing everything is settled within so long."""

ENDED_LOG, UNSETTLED_LOG, FOUND_LOG = LOGS = ("ended.log", "unsettled.log", "found.log")
"""What processes said that ended by themselves, did not settle, or contradicted an invariant."""

FIRST_SECONDS = 90.0
"""The first message is visible within so long."""

ROUNDS = (None, ROLLING, None, SHORT)
"""Kinds of rounds, in turn."""

_PACE = (0.3, 2.0)
"""Seconds from one fault to the next."""
_EARLY_SECONDS = 5.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """What came of a run.

    `pauses_seconds`: the slowest messages (s) while brokers went away in turn, by step, mode and kind of topic;
    `outcomes`: what else was counted: what became of kept requests, processes that ended by themselves; `attacks`: what
    the hostile application of the second channel did; empty: there is no second channel; `ended_early`: why it ended
    before its time, in a round that was not checked: a server did not start again on a machine that is too busy. Empty:
    it did not.
    """

    seed: int
    environment: dict[str, Any]
    rounds: int = 0
    transactions: int = 0
    messages: int = 0
    rows: int = 0  # messages that were rows of the message table
    rolled_back_by_the_checker: int = 0
    halves: int = 0
    late_messages: int = 0  # messages that were delivered out of their order, and say so
    seconds: float = 0.0  # how long it took, without starting the servers
    longest_stall_seconds: float = 0.0  # the longest time (s) for which readers of a real partition were held up
    slowest_healing_seconds: float = 0.0  # the longest time (s) from the end of the faults until all was settled
    pauses_seconds: dict[str, float] = field(default_factory=dict)
    checkpoints: int = 0
    most: dict[str, int] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    attacks: Counter[str] = field(default_factory=Counter)
    hurts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    ended_early: str = ""

    def report(self) -> dict[str, Any]:
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        found = {name: dict(sorted(of.items())) if isinstance(of, dict) else of for name, of in found.items()}
        hostile = {"attacks": found.pop("attacks"), "hurts": found.pop("hurts")}
        return {
            **found.pop("environment"),
            **found,
            "seconds": round(self.seconds),
            "longest_stall_seconds": round(self.longest_stall_seconds, 1),
            "slowest_healing_seconds": round(self.slowest_healing_seconds, 1),
            "invariants": sorted(_checked(bool(self.attacks)), key=lambda name: int(name[1:])),
            "violations": len(self.violations),
            "found": [list(violation) for violation in self.violations],
            **({"hostile": hostile} if self.attacks else {}),
        }


def _checked(hostile: bool) -> set[str]:  # noqa: FBT001 - one of two kinds of run
    """Return the invariants that a run checks: I16 asks for a second channel, I18 for none."""
    return {*INVARIANTS, *WATCHED} - ({"I18"} if hostile else {"I16"})


class Run:
    """One run, with a folder for logs of processes that end badly; kinds of rounds in turn, or None: at random."""

    def __init__(
        self, world: World, seed: int, folder: Path, say: Say, round_seconds: float, kinds: Sequence[Kind | None]
    ) -> None:
        self.result = Result(seed, environment(world.stack))
        self._world = world
        self._folder = folder
        self._say = say
        self._round_seconds = round_seconds
        self._chance = random.Random(seed)
        self._ways: Counter[str] = Counter()
        second, folder = world.hostile, Path(world.site.log_folder)
        services = second.settings() if second else None
        self._kinds = kinds
        self._diary = Diary(folder / "diary")
        self._processes = Processes(world.site, world.settings(), self._chance, self._diary, services)
        self._steps = Steps(world, self._chance, self._let_pass_quietly)
        self._plain = PlainRecords(world.site, time.time)
        self._assault = Assault(second, world.channel.half.id, random.Random(seed)) if second else None
        self._discarded: Counter[str] = Counter()
        self._cruelty = Cruelty(world, self._processes, self._diary, self._chance, min(MINUTE, round_seconds / 2))
        self._reader = Reader(world.site.bootstrap_servers, world.places())
        self._observers = Observers(
            world.site.bootstrap_servers, world.channel, world.places(), self._processes.services, 2 if second else 1
        )
        self._gathering = Gathering(world, self._reader, self._observers, self._diary)

    def run(self, seconds: float) -> Result:
        """Rounds until the seconds of faults and healing are up, or something is found."""
        with ExitStack() as life:
            self._reader.start()
            life.callback(self._reader.end)
            life.enter_context(self._observers)
            life.enter_context(self._plain)
            life.enter_context(closing(self._cruelty))
            if self._assault is not None:
                life.callback(self._assault.end)
            self._come_up()
            began = time.monotonic()
            while (left := seconds - (time.monotonic() - began)) > 0 and not self.result.violations:
                try:
                    self._round(min(self._round_seconds, left))
                except StartError as error:
                    self.result.ended_early = str(error)
                    break
                self.result.seconds = time.monotonic() - began
        return self.result

    def _come_up(self) -> None:
        self._say("starting applications, relays and checkers")
        self._processes.watch(faults=self._kind() is None, applications=True)
        wait_until(lambda: bool(self._reader.seen_from(0)), FIRST_SECONDS, self._world.site.logs)

    def _round(self, seconds: float) -> None:
        self._send_the_hostile_one()
        kind = self._kind()
        # What is left of the time may be too little for steps.
        if kind is None or (self.result.rounds and seconds < self._round_seconds):
            self._torture(seconds)
        else:
            self._say(f"round {self.result.rounds + 1}: {kind.name}")
            self._steps.run(kind)
        self._say("healing")
        self._end_faults()
        self._say("all servers are there")
        self._processes.heal()
        self._say("all processes are well")
        healed = time.monotonic()
        unsettled = self._wait_until_settled(healed + HEALED_SECONDS)
        self.result.slowest_healing_seconds = max(self.result.slowest_healing_seconds, time.monotonic() - healed)
        self._check(unsettled)

    def _end_faults(self) -> None:
        """Wake meanwhile who sleeps in a local transaction: others wait for its locks, to take a fault back."""
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(self._cruelty.heal)
            while not ended.done():
                self._processes.wake_sleepers()
                time.sleep(_PACE[0])
        ended.result()

    def _kind(self) -> Kind | None:
        """The kind of the next round, for which applications are about to start."""
        kind = self._kinds[self.result.rounds % len(self._kinds)]
        self._processes.short_share = kind.short_share if kind else SHORT_SHARE
        return kind

    def _let_pass_quietly(self) -> None:
        """Look after processes without faults, for a moment."""
        self._processes.watch(faults=False, applications=True)
        self._keep_bad_endings()
        time.sleep(_PACE[0])

    def _send_the_hostile_one(self) -> None:
        """Give the hostile application a channel that it has not ruined yet, in relays and checkers started for it."""
        if self._assault is None or self._world.hostile is None:
            return
        if self.result.rounds:
            with self._processes.down("relay"), self._processes.down("checker"):
                self._world.hostile.renew()
        self._assault.begin()

    def _end_the_hostile_one(self) -> list[Violation]:
        """Count what it did and what became of its channel; a channel that nothing hurt is no proof."""
        if self._assault is None or self._world.hostile is None:
            return []
        self._assault.end()
        hurts = self._world.hostile.hurts()
        self._discarded += hurts
        self.result.attacks = Counter(self._assault.attacks)
        self.result.hurts = self._discarded + self._processes.hurts()
        return [] if hurts else [Violation("I16", "the hostile channel was not hurt: the run proves nothing")]

    def _torture(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        look_at = time.monotonic()
        while time.monotonic() < end:
            self._processes.watch(faults=True, applications=True)
            time.sleep(self._chance.uniform(*_PACE))  # the pace of the faults
            self._cruelty.fault()
            self._keep_bad_endings()
            if time.monotonic() > look_at:
                look_at = time.monotonic() + _EARLY_SECONDS
                self._gathering.look_for_early_ones()
                self._progress(end)

    def _progress(self, end: float) -> None:
        faults = sum(self._cruelty.all_faults().values())
        visible = self.result.messages + len(self._reader.seen_from(0))
        left = max(end - time.monotonic(), 0)
        self._say(f"round {self.result.rounds + 1}, {left:3.0f} s left: {visible} visible messages, {faults} faults")

    def _keep_bad_endings(self) -> None:
        while self._processes.ended_badly:
            with (self._folder / ENDED_LOG).open("a") as file:
                file.write(self._processes.ended_badly.pop() + "\n")

    def _wait_until_settled(self, deadline: float) -> list[str]:
        gathering = self._gathering
        while (leaving := gathering.leaving()) or not (
            self._world.site.settled() and not gathering.waiting() and self._cruelty.is_operated
        ):
            if time.monotonic() > deadline:
                (self._folder / UNSETTLED_LOG).write_text(self._world.site.logs())
                return [f"half partitions, transactions in the discard topic, rows, or a halt, see {UNSETTLED_LOG}"]
            self._processes.watch(faults=False, applications=False)
            self._cruelty.operate()
            if DiscardReason.TOPIC_UNAVAILABLE in leaving:
                self._cruelty.deliver_refused()
            time.sleep(0.5)
        return []

    def _waits(self) -> Callable[[str], Sequence[Span]]:
        """When Kafka took no plain records, or had not ended the last transaction of an owner."""
        plain, held = self._plain.spans(), held_owners(self._world)
        return lambda owner: merged([*plain, *held.get(owner, ())])

    def _check(self, unsettled: list[str]) -> None:
        slow = self._steps.take_found(self._diary.read(), self._reader.arrived(), self._waits())
        found = [Violation("I15", detail) for detail in self._cruelty.found()]
        found += [Violation("I18", detail) for detail in slow]
        evidence = self._gathering.gather(unsettled)
        found += check(evidence)
        found += self._end_the_hostile_one()
        result = self.result
        result.rounds += 1
        result.transactions += evidence.transactions()
        result.messages += len(evidence.told)
        result.rolled_back_by_the_checker += sum(state == "R" for state in evidence.rows.values())
        result.halves += len(evidence.halves)
        result.rows += len(evidence.delivered)
        self._ways += ways(evidence)
        result.late_messages += sum(record.late for record in evidence.log)
        result.longest_stall_seconds = self._observers.stalls.longest
        result.checkpoints = self._observers.checkpoints.samples
        result.most = self._observers.resources.most
        result.pauses_seconds = self._steps.pauses.slowest
        result.faults = self._cruelty.all_faults() + self._steps.faults
        result.outcomes = self._cruelty.outcomes() + self._ways + self._gathering.outcomes
        result.outcomes += self._steps.pauses.transactions
        result.violations += found
        if found:
            (self._folder / FOUND_LOG).write_text(self._world.site.logs())
        done = f"{evidence.transactions()} transactions, {len(evidence.told)} messages"
        self._say(f"round {result.rounds}: {done}, {len(found)} violations")


def ways(evidence: Evidence) -> Counter[str]:
    """How many messages of each mode were halves, and how many were rows."""
    modes = {id_: told.mode for id_, told in evidence.told.items()}
    return Counter(
        f"messages of mode {modes[record.id]} that were {'rows' if record.is_row else 'halves'}"
        for record in evidence.log
        if record.id in modes
    )


def torture(
    seconds: float,  # for all rounds; the last one heals after that
    seed: int,
    folder: Path,
    say: Say,
    *,
    round_seconds: float = ROUND_SECONDS,
    loses_commits: bool = False,
    hostile: bool = False,
    kinds: Sequence[Kind | None] = ROUNDS,
) -> Result:
    """Start a world, torture it, and say what came of it; nothing is left running.

    `loses_commits`: fail over, again and again, to a standby that commits do not wait for, and do nothing else: what is
    lost then must be found; `kinds`: kinds of rounds, in turn; None: all faults at random. Beside a hostile channel
    there are no others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in LOGS:
        (folder / name).unlink(missing_ok=True)
    say("starting three brokers, Postgres and its standby")
    with started(loses_commits=loses_commits, hostile=hostile) as world:
        return Run(world, seed, folder, say, round_seconds, [None] if hostile or loses_commits else kinds).run(seconds)
