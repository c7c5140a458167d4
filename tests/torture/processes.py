"""The tortured processes: applications, relays and checkers, with failpoints in them; killed, stopped, started anew."""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.harness import Service, Site
from tests.support.wrong_clock import VARIABLE as WRONG_CLOCK
from tests.torture.diary import Diary
from tests.torture.hostile.mark import MARK

APPLICATIONS = {f"{mode} application": mode for mode in ("half", "table")}
"""Kinds of applications, and the mode of each."""

KINDS = (*APPLICATIONS, "relay", "checker") * 2
"""Of each kind there are two processes: they wait for each other's locks."""

_HALVES = {"outbox.half_acked": 40, "outbox.sealed": 40, "outbox.committed": 40, "outbox.op": 40}
_APPLICATION = {"application.begun": 100, "application.sent": 40, "application.done": 40}

FAILPOINTS: dict[str, dict[str, int]] = {
    "half application": {**_APPLICATION, **_HALVES},
    "table application": _APPLICATION,
    "relay": {
        **dict.fromkeys(("relay.fenced", "relay.restored"), 4),
        **dict.fromkeys(("relay.polled", "relay.kafka.producer", "relay.produced", "relay.flushed"), 50),
        **dict.fromkeys(("relay.offsets_sent", "relay.committed", "relay.table_delivered"), 50),
        **dict.fromkeys(("relay.state.parking", "relay.late_fetched", "relay.late_committed"), 2),
        "relay.revoking": 1,
        "relay.table_taken_over": 2,
        "relay.table_read": 500,
        "relay.table_moved": 100,
        "relay.table_woken": 100,
    },
    "checker": {f"checker.{step}": 15 for step in ("locked", "placed", "fenced", "decided", "answering", "answered")},
}
"""The steps of a kind of process, and up to which of their passings it lives."""

SHORT_SHARE = 0.05

_STOPPED_SECONDS = (1.0, 12.0)
_RELAY_STOPPED_SECONDS = (8.0, 28.0)
"""How long a process sleeps: a relay longer than its session in Kafka lasts (6 s), so that it wakes up as a zombie.
At times it is longer than its session in the database lasts (20 s): then another one owns its table source."""

OPEN = {"application.begun", "application.sent", "outbox.half_acked", "outbox.sealed"}
"""Steps inside a local transaction: an application that stops there keeps it open."""

IN_FENCE = {"checker.locked", "checker.placed", "checker.fenced"}
"""Steps inside a fence: a checker that stops there holds the advisory locks of its transactions."""

HALTED = "Table source halted"
"""What a relay logs then."""

_HURTS = {
    HALTED: "halts of its table source",
    "Partition halted": "halts of its half partitions",
    "Channel stopped, it is started again": "stops of its channel in a process that goes on",
}

OPEN_SECONDS = 60.0
_OPEN_SHARE = 0.3
_FAILPOINT_SHARE = 0.8
_WRONG_CLOCK_SHARE = 0.2
_WRONG_CLOCK_SECONDS = (-7200, 3600, 7200)
_STOP_SHARE = 0.25
_END_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class _Running:
    kind: str
    service: Service
    failpoint: str
    killed: bool = False
    asked: bool = False
    asleep_since: float = 0.0
    wakes_at: float | None = None

    @property
    def step(self) -> str:
        return self.failpoint.partition(":")[0]

    @property
    def sleep(self) -> tuple[float, float]:
        return _RELAY_STOPPED_SECONDS if self.kind == "relay" else _STOPPED_SECONDS


class Processes:
    """All of them; over the settings of `services`, with a share of transactions for the topic of two replicas."""

    def __init__(
        self,
        site: Site,
        settings: Mapping[str, str],  # more settings for their environment: addresses of proxies, for one
        chance: random.Random,
        diary: Diary,
        services: Mapping[str, str | None] | None = None,
    ) -> None:
        self.faults: Counter[str] = Counter()  # what was done to them, by name
        self.outcomes: Counter[str] = Counter()
        self.short_share = SHORT_SHARE
        self.ended_badly: list[str] = []
        self._diary = diary
        self._site = site
        self._settings = settings
        self._of_services = services or {}
        self._chance = chance
        self._running: list[_Running] = []
        self._down: Counter[str] = Counter()  # how many want none of a kind
        self._halts: set[str] = set()
        self._hurts: Counter[str] = Counter()

    @contextmanager
    def down(self, kind: str) -> Iterator[None]:
        """Kill all processes of a kind, and start none of it during the block."""
        self._down[kind] += 1
        try:
            for process in list(self._running):
                if process.kind == kind:
                    process.killed = True
                    process.service.process.kill()
            yield
        finally:
            self._down[kind] -= 1

    def watch(self, *, faults: bool, applications: bool) -> None:
        """Start what does not run, but for applications if there are none, and wake who slept long enough."""
        self._running = [process for process in self._running if self._lives(process)]
        self.wake_sleepers()
        wanted = Counter(kind for kind in KINDS if not self._down[kind] and (applications or kind not in APPLICATIONS))
        wanted.subtract(process.kind for process in self._running)
        for kind in wanted.elements():
            self._running.append(self._start(kind, faults=faults))

    def wake_sleepers(self) -> None:
        """Wake who slept long enough."""
        for process in self._running:
            self._look_whether_asleep(process)

    def _lives(self, process: _Running) -> bool:
        code = process.service.process.poll()
        if code is None:
            return True
        self._site.services.remove(process.service)
        self._halts |= halts_of(process.service)
        self._hurts += hurts_of(process.service)
        if code == -signal.SIGKILL:
            self.faults[f"{process.kind} killed" if process.killed else f"killed at {process.step}"] += 1
        elif code in {0, -signal.SIGTERM} and process.asked:  # the latter before it listens to signals
            self.faults[f"{process.kind} asked to end"] += 1
        else:
            self.outcomes[f"{process.kind} ended by itself"] += 1
            self.ended_badly.append(f"{process.kind} ended with {code}:\n{process.service.output()[-3000:]}")
        process.service.log.unlink(missing_ok=True)
        return False

    def _look_whether_asleep(self, process: _Running) -> None:
        """One that stopped at a failpoint of its own is woken, too."""
        if process.wakes_at is None and process.failpoint.endswith(":stop") and is_stopped(process.service):
            self.faults[f"stopped at {process.step}"] += 1
            self._let_sleep(process)
        if process.wakes_at is not None and time.monotonic() >= process.wakes_at:
            self._wake(process)

    def _let_sleep(self, process: _Running) -> None:
        long = process.step in OPEN | IN_FENCE and self._chance.random() < _OPEN_SHARE
        process.asleep_since = time.monotonic()
        process.wakes_at = process.asleep_since + (OPEN_SECONDS if long else self._chance.uniform(*process.sleep))

    def _wake(self, process: _Running) -> None:
        if time.monotonic() - process.asleep_since >= OPEN_SECONDS:
            what = "checker stopped in its fence" if process.step in IN_FENCE else "local transaction open"
            self.faults[f"{what} for a minute"] += 1
        process.wakes_at = None
        process.service.process.send_signal(signal.SIGCONT)

    def _start(self, kind: str, *, faults: bool) -> _Running:
        failpoint = self._choose_failpoint(kind) if faults else ""
        settings: dict[str, str | None] = dict(self._settings)
        if mode := APPLICATIONS.get(kind):
            seed, log = str(self._chance.randrange(10**6)), kind.replace(" ", "-")
            module = "tests.torture.application"
            arguments = [mode, self._site.name, str(self._diary.path), seed, str(self.short_share), log]
            if mode == "table":
                settings["OUTBOX_BOOTSTRAP_SERVERS"] = None
        else:
            module, arguments = "outbox", [kind]
            settings |= self._of_services
        if faults and module == "outbox" and self._chance.random() < _WRONG_CLOCK_SHARE:
            module = "tests.support.wrong_clock"
            settings[WRONG_CLOCK] = str(self._chance.choice(_WRONG_CLOCK_SECONDS))
            self.faults[f"{kind} with a wrong clock"] += 1
        service = self._site.start_module(module, *arguments, failpoint=failpoint, extra=settings)
        return _Running(kind, service, failpoint)

    def _choose_failpoint(self, kind: str) -> str:
        if self._chance.random() > _FAILPOINT_SHARE:
            return ""
        step, most = self._chance.choice(sorted(FAILPOINTS[kind].items()))
        stop = ":stop" if self._chance.random() < _STOP_SHARE else ""
        return f"{step}:{self._chance.randint(1, most)}{stop}"

    def kill_one(self) -> None:
        process = self._chance.choice(self._running)
        process.killed = True
        process.service.process.kill()

    def end_one(self) -> None:
        if awake := self._awake():
            process = self._chance.choice(awake)
            process.asked = True
            process.service.process.terminate()

    def _awake(self) -> list[_Running]:
        return [process for process in self._running if process.wakes_at is None and process.service.running]

    def stop_one(self) -> None:
        """Stop any of them that is awake, for a while."""
        if awake := self._awake():
            process = self._chance.choice(awake)
            process.service.process.send_signal(signal.SIGSTOP)
            process.asleep_since = time.monotonic()
            process.wakes_at = process.asleep_since + self._chance.uniform(*process.sleep)
            self.faults[f"{process.kind} stopped"] += 1

    def heal(self) -> None:
        """Wake everybody, end the applications, and replace whoever has a failpoint that is still to come."""
        for process in self._running:
            if process.service.running:
                process.service.process.send_signal(signal.SIGCONT)
        for process in self._running:
            if process.kind in APPLICATIONS:
                self._end(process)
            elif process.failpoint:
                process.killed = True
                process.service.kill()
        self.watch(faults=False, applications=False)

    @staticmethod
    def _end(process: _Running) -> None:
        """Ask an application to end. One that stops itself at a failpoint once more is woken, or killed at last."""
        process.asked = True
        process.service.process.terminate()
        deadline = time.monotonic() + _END_SECONDS
        while process.service.running:
            if time.monotonic() > deadline:
                process.killed = True
                process.service.kill()
            process.service.process.send_signal(signal.SIGCONT)
            time.sleep(0.1)

    def halts(self) -> frozenset[str]:
        """The lines of all relays, also of those that ended, that say that the table source is halted."""
        running = [halts_of(process.service) for process in list(self._running) if process.kind == "relay"]
        return frozenset().union(*running, self._halts)  # one that ends meanwhile is in the latter by now

    def hurts(self) -> Counter[str]:
        """How often the hostile channel halted or stopped, in all relays and checkers so far."""
        running = [hurts_of(process.service) for process in self._running]
        return sum(running, Counter(self._hurts))

    def services(self) -> Sequence[tuple[str, int]]:
        return [(each.kind, each.service.process.pid) for each in list(self._running) if each.kind not in APPLICATIONS]


def halts_of(service: Service) -> frozenset[str]:
    """The lines of a process that say that a table source is halted, other than the hostile channel's."""
    return frozenset(f"{service.log.name}: {line}" for line in _lines(service) if HALTED in line and MARK not in line)


def hurts_of(service: Service) -> Counter[str]:
    return Counter(
        _HURTS[event]
        for line in _lines(service)
        if MARK in line and line.startswith("{") and (event := json.loads(line).get("event")) in _HURTS
    )


def _lines(service: Service) -> Sequence[str]:
    try:
        return service.output().splitlines()
    except FileNotFoundError:  # it has ended
        return ()


def is_stopped(service: Service) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
