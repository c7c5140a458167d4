"""The gate: what is committed waits here as long as its real topic cannot take it, in the hope that this passes. Pure.

A topic may be made a moment after its first message, metadata may be late, a topic may grow, a right may be granted:
none of these is worth a discard, which wakes somebody. So such a topic is looked at again, with back-off, and what is
for it stays where it is in its order, unsettled; all others go on. Only what lasts is discarded; what waits for a topic
that is there, but whose broker is not, waits as long as there is room.

The looks themselves are somebody else's. Times are monotonic ms: how long a topic has been looked for is no matter of
the broker's clock, which leaps while a relay catches up.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from outbox.protocol.names import Channel
from relay.batching.allow_list import EVERYTHING, AllowList
from relay.batching.preflight import PASSING, RealTopic, inspect_targets
from relay.state.half_records import Target
from relay.state.message_transaction import State, Transaction

KNOWN_MS = 5_000
"""So long what was learned of a topic is good for more transactions; a look after that may come from a cache."""


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """How long to wait for a real topic.

    Args:
        max_age: How long a topic is looked for, ms.
        pause: Pause before the second look, ms; it doubles from look to look.
        pause_max: The longest pause, ms.
    """

    max_age: int = 60_000
    pause: int = 100
    pause_max: int = 5_000

    def pause_after(self, looks: int, who: str) -> int:
        """Return the pause after the given number of look-ups, ms, spread by up to 10 % to avoid waves."""
        exact = min(self.pause << min(looks - 1, 20), self.pause_max)
        spread = zlib.crc32(f"{who}/{looks}".encode()) % 201 - 100
        return exact + exact * spread // 1_000


class News(NamedTuple):
    """Transactions begin to wait for a real topic, for the reason in `detail`; without one they wait no longer."""

    topic: str
    detail: str


@dataclass(slots=True)
class _Closed:
    """A real topic that cannot take some transactions.

    Args:
        seen: What the looks have shown so far: another sight lets all pass that wait.
        since: When that was seen first.
        due: When to look again.
        looks: How often it was looked at.
        waiting: Those that wait, by id.
    """

    seen: object
    since: int
    due: int
    looks: int = 1
    waiting: dict[str, Transaction] = field(default_factory=dict)

    def living(self) -> list[Transaction]:
        """Those that wait and have not been decided otherwise meanwhile."""
        return [transaction for transaction in self.waiting.values() if transaction.state is State.COMMITTED]


class Gate:
    """Lets transactions of one half partition through to their real topics.

    Args:
        policy: How long to wait for a topic.
        channel: The channel.
        partition: The half partition, so that the looks of several do not come together.
        allowed: Who may write where.
    """

    def __init__(self, policy: GatePolicy, channel: Channel, partition: int, allowed: AllowList = EVERYTHING) -> None:
        self._policy = policy
        self._channel = channel
        self._partition = partition
        self.allowed = allowed
        self._now = 0
        self._known_since = 0
        self._topics: dict[str, RealTopic | None] = {}  # None: it does not exist
        self._unknown: dict[str, list[Transaction]] = {}
        self._closed: dict[str, _Closed] = {}
        self._given_up: set[Transaction] = set()
        self._news: list[News] = []

    @property
    def topics(self) -> Mapping[str, RealTopic | None]:
        """What is known of real topics; None of one that does not exist. Pre-flight must see the same."""
        return self._topics

    # --- which transactions may go ------------------------------------------------------------------------------

    def admits(self, transaction: Transaction) -> bool:
        """Whether a transaction may be handed out; if not, it waits here, and `learn` or `relieve` gives it back.

        Admitted is also what pre-flight will refuse: for a final reason, or because its topic was looked for too long.
        """
        topics = self._topics
        for half in transaction.halves.values():
            target = half.target()
            topic = topics.get(target.topic) if target else None
            if target is None or topic is None or not topic.takes(target.partition):
                return self._admits(transaction)
        return True

    def _admits(self, transaction: Transaction) -> bool:
        if transaction.discarded:  # it is out of its order anyway, and nobody waits for it
            return True
        finding = inspect_targets(transaction, self._topics, self._channel, self.allowed)
        if finding is None or finding.reason not in PASSING:
            return True
        targets = [target for half in transaction.counted() if (target := half.target())]
        unknown = next((target.topic for target in targets if target.topic not in self._topics), None)
        if unknown is not None:
            self._unknown.setdefault(unknown, []).append(transaction)
            return False
        if transaction in self._given_up:
            self._given_up.discard(transaction)
            return True
        name = next(target.topic for target in targets if not self._is_open(target))
        self._wait(transaction, name, finding.detail)
        return False

    def _is_open(self, target: Target) -> bool:
        topic = self._topics.get(target.topic)
        return topic is not None and topic.takes(target.partition)

    def _wait(self, transaction: Transaction, name: str, detail: str) -> None:
        closed = self._closed.get(name)
        if closed is None:
            seen = _sight(self._topics[name])
            closed = self._closed[name] = _Closed(seen, self._now, self._now + self._pause(name, 1))
            self._news.append(News(name, detail))
        closed.waiting[transaction.id] = transaction

    def _pause(self, name: str, looks: int) -> int:
        return self._policy.pause_after(looks, f"{name}/{self._partition}")

    # --- which topics to look at --------------------------------------------------------------------------------

    def turn(self, now: int) -> set[str]:
        """Begin a turn: the topics that are to be looked at again. What was learned long ago is forgotten.

        Args:
            now: Monotonic ms.
        """
        self._now = now
        self._given_up = {transaction for transaction in self._given_up if transaction.state is State.COMMITTED}
        if now - self._known_since >= KNOWN_MS:
            self._topics = {name: self._topics[name] for name in self._closed}
            self._known_since = now
        return {name for name, closed in self._closed.items() if closed.due <= now}

    def unknown(self) -> set[str]:
        """Return the topics that must be looked at before what was refused in this turn can be judged."""
        return set(self._unknown)

    def learn(self, names: Collection[str], found: Mapping[str, RealTopic]) -> list[Transaction]:
        """Topics were looked at.

        Args:
            names: Which.
            found: Those of them that exist.

        Returns:
            Transactions that waited for it, in their order: the ledger may hand them out.
        """
        back: list[Transaction] = []
        for name in names:
            self._topics[name] = found.get(name)
            back += self._unknown.pop(name, ())
            closed = self._closed.get(name)
            if closed is not None:
                back += self._look(name, closed)
        return back

    def refresh(self, names: Collection[str], found: Mapping[str, RealTopic]) -> list[Transaction]:
        """As `learn`, in the middle of a turn: what has become worse is passed over until the next look.

        Else what was admitted a moment ago would be discarded at once.
        """
        better = [name for name in names if name not in self._topics or _is_better(found.get(name), self._topics[name])]
        return self.learn(better, found)

    def _look(self, name: str, closed: _Closed) -> list[Transaction]:
        waiting = closed.living()
        if _sight(self._topics[name]) != closed.seen:
            del self._closed[name]
            self._news.append(News(name, ""))
            return waiting
        if not waiting:
            del self._closed[name]
            return []
        closed.looks += 1
        closed.due = self._now + self._pause(name, closed.looks)
        topic = self._topics[name]
        if self._now - closed.since < self._policy.max_age or (topic is not None and topic.unavailable):
            return []
        closed.waiting.clear()
        self._given_up.update(waiting)
        return waiting

    def postpone(self, names: Collection[str]) -> None:
        """Topics could not be looked at: that says nothing of them, and the time that they are given begins anew."""
        for name in names:
            closed = self._closed[name]
            closed.since = self._now
            closed.looks += 1
            closed.due = self._now + self._pause(name, closed.looks)

    # --- who waits ----------------------------------------------------------------------------------------------

    def relieve(self, crowds: Callable[[Transaction], bool]) -> list[Transaction]:
        """Give up waiting where it takes room that others need; the ledger may hand those out.

        Args:
            crowds: Whether a transaction takes such room.
        """
        leaving: list[Transaction] = []
        for closed in self._closed.values():
            some = [transaction for transaction in closed.living() if crowds(transaction)]
            for transaction in some:
                del closed.waiting[transaction.id]
            leaving += some
        self._given_up.update(leaving)
        return leaving

    def waiting(self) -> int:
        """How many transactions wait for a topic; also those that were decided otherwise since it was looked at."""
        return sum(len(closed.waiting) for closed in self._closed.values())

    def take_news(self) -> list[News]:
        """Return what has happened since the last call."""
        taken, self._news = self._news, []
        return taken


def _is_better(topic: RealTopic | None, before: RealTopic | None) -> bool:
    """Whether a topic takes all that it took before."""
    if topic is None or topic.lacks or topic.unavailable:
        return False
    return before is None or topic.partitions >= before.partitions


def _sight(topic: RealTopic | None) -> object:
    """Return what of a topic decides whether it can take a message; its other settings come later."""
    return None if topic is None else (topic.partitions, topic.lacks, topic.unavailable)
