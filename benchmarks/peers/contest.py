"""Ours and its peers in turn; a peer that fails drops out, and its figures say why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import InitVar, dataclass, field
from typing import Generic, TypeVar

import psycopg
from confluent_kafka import KafkaException
from rich.console import Console

from benchmarks import polling_relay
from benchmarks.figures import Figure, Target
from benchmarks.interleaved import LEAST_ROUNDS
from outbox.errors import OutboxError

T = TypeVar("T")
P = TypeVar("P")

WORDS = {
    "polling": polling_relay.WORDS,
    "debezium_default": "Debezium as it comes",
    "debezium_tuned": "Debezium tuned",
    "rocketmq": "RocketMQ",
    "exactly_once": "half mode",
    "table": "table mode",
}
"""The peers, and the modes of ours that stand beside another one, for people."""

_FAILURES = (OutboxError, AssertionError, OSError, ValueError, psycopg.Error, KafkaException)
"""What a peer that does not start, does not deliver, says what cannot be read, or dies is seen by."""

_console = Console(stderr=True)


@dataclass(slots=True)
class Peers:
    """The peers of one part: those that started, and why the others did not.

    Args:
        cleared: By name, takes away what a peer that drops out leaves behind, so that it is in nobody's way.
    """

    running: ExitStack
    without: InitVar[Collection[str]] = ()
    cleared: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    reasons: dict[str, str] = field(init=False)

    def __post_init__(self, without: Collection[str]) -> None:
        """Begin with those that are left out."""
        self.reasons = dict.fromkeys(without, "left out of this run")

    def start(self, name: str, starting: AbstractContextManager[P]) -> P | None:
        """Start a peer; None if it is left out, or, with a reason, if it does not start."""
        if name in self.reasons:
            return None
        try:
            return self.running.enter_context(starting)
        except _FAILURES as error:
            self.drop(name, error)
            return None

    def warm(self, name: str, run: Callable[[], object]) -> None:
        """Let a peer that is not left out warm up; it drops out if it fails."""
        if name in self.reasons:
            return
        try:
            run()
        except _FAILURES as error:
            self.drop(name, error)

    def drop(self, name: str, error: Exception) -> None:
        """Note why a peer is not measured, say all of it now, and clear away what it leaves."""
        _console.print(f"{name} is not measured: {error!r}", markup=False, highlight=False)
        self.reasons[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
        self.cleared.get(name, lambda: None)()


@dataclass(frozen=True, slots=True)
class Contest(Generic[T]):
    """What came of several rounds.

    Args:
        found: What each of ours and each peer returned, a value for each round.
        reasons: Why some are not among them.
    """

    found: Mapping[str, list[T]]
    reasons: Mapping[str, str]

    def figure(
        self,
        name: str,
        title: str,
        unit: str,
        beside: tuple[str, str],
        value: Callable[[T], float],
        target: Target | None = None,
    ) -> Figure:
        """Return a figure of ours beside one of the others.

        Args:
            beside: The names of ours and of what stands beside it.
            value: Of one round's result.
        """
        ours, peer = beside
        return Figure(
            name,
            title,
            unit,
            WORDS.get(peer, peer),
            [value(each) for each in self.found[ours]],
            [value(each) for each in self.found.get(peer, [])],
            target,
            self.reasons.get(ours) or self.reasons.get(peer),
        )


def compete(
    ours: Mapping[str, Callable[[], T]],
    others: Mapping[str, Callable[[], T]],
    peers: Peers,
    rounds: int,
    rests: Mapping[str, Callable[[], None]] | None = None,
) -> Contest[T]:
    """Run all in turn, so many times; a peer that fails once, or does not come to rest, is not measured.

    Args:
        ours: By name; if one of these fails, so does the part.
        rests: By name, waits after each run until all that it left to be done is done.
    """
    if rounds < LEAST_ROUNDS:
        raise ValueError(f"{rounds} rounds tell nothing of the spread: use at least {LEAST_ROUNDS}")
    found: dict[str, list[T]] = {name: [] for name in [*ours, *others]}

    def run_once(name: str, run: Callable[[], T]) -> None:
        found[name].append(run())
        (rests or {}).get(name, lambda: None)()

    for _ in range(rounds):
        for name, run in ours.items():
            run_once(name, run)
        for name, run in others.items():
            if name not in peers.reasons:
                try:
                    run_once(name, run)
                except _FAILURES as error:
                    peers.drop(name, error)
    return Contest({name: some for name, some in found.items() if name not in peers.reasons}, dict(peers.reasons))
