"""The gate: which real topics can take messages, and which transactions wait because theirs cannot. Pure.

A topic may be created a moment after its first message, metadata may be late, a topic may grow, a right may be granted:
none of these is worth a discard, which needs an operator. Such a topic is looked at again, with back-off. What is for
it stays in its order in the ledger, unsettled; all others go on. What waits for a topic for longer than `max_age` is
handed out, and pre-flight discards it. What waits for a topic that exists, but whose broker is away, waits as long as
there is room.

The worker makes the looks. Times are monotonic ms: the broker's clock leaps while a relay catches up.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from outbox.protocol.names import Channel
from relay.batching.allow_list import EVERYTHING, AllowList
from relay.batching.preflight import PASSING, RealTopic, inspect_targets
from relay.state.half_records import Target
from relay.state.message_transaction import Transaction

KNOWN_MS = 5_000
"""Time for which the description of a topic is used for more transactions; a look after that may come from a cache."""


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


class TopicStatusChange(NamedTuple):
    """Transactions begin to wait for a real topic, for the reason in `detail`; without one they wait no longer."""

    topic: str
    detail: str


class Looked(NamedTuple):
    """What a look at real topics changes for the transactions that wait for them.

    Args:
        opened: Topics that may take them now: the gate decides again.
        given_up: Topics for which they wait no longer, although nothing has changed.
    """

    opened: set[str]
    given_up: set[str]


@dataclass(slots=True)
class _Closed:
    """A real topic that cannot take some transactions.

    Args:
        seen: What the looks have shown so far; any change opens the topic.
        since: When that was seen first, monotonic ms.
        due: When to look again, monotonic ms.
        looks: How often it was looked at.
    """

    seen: object
    since: int
    due: int
    looks: int = 1


class Gate:
    """What is known of the real topics of one half partition or table source, and which of them are closed.

    It holds no transaction: those that wait are elsewhere.

    Args:
        policy: How long to wait for a topic.
        channel: The channel.
        owner: The half partition or the table source; it spreads the looks of several.
        allowed: Who may write where.
    """

    def __init__(self, policy: GatePolicy, channel: Channel, owner: int | str, allowed: AllowList = EVERYTHING) -> None:
        self._policy = policy
        self._channel = channel
        self.owner = owner
        self.allowed = allowed
        self._now = 0
        self._known_since = 0
        self._topics: dict[str, RealTopic | None] = {}  # None: it does not exist
        self._unknown: set[str] = set()
        self._closed: dict[str, _Closed] = {}
        self._news: list[TopicStatusChange] = []

    @property
    def topics(self) -> Mapping[str, RealTopic | None]:
        """What is known of real topics; None of one that does not exist. Pre-flight must see the same."""
        return self._topics

    # --- which transactions may go

    def closed_to(self, transaction: Transaction) -> str | None:
        """Return the real topic for which a committed transaction must wait; None if it may be handed out.

        The topic is one of `unknown()`, or one that cannot take a message of the transaction now. A transaction that
        pre-flight will refuse may be handed out: for a final reason, or because it was given up.
        """
        topics = self._topics
        for half in transaction.halves.values():
            target = half.target()
            topic = topics.get(target.topic) if target else None
            if target is None or topic is None or not topic.takes(target.partition):
                return self._closed_to(transaction)
        return None

    def _closed_to(self, transaction: Transaction) -> str | None:
        if transaction.discarded:  # it is out of its order anyway, and nothing waits behind it
            return None
        finding = inspect_targets(transaction, self._topics, self._channel, self.allowed)
        if finding is None or finding.reason not in PASSING:
            return None
        targets = [target for half in transaction.counted() if (target := half.target())]
        unknown = next((target.topic for target in targets if target.topic not in self._topics), None)
        if unknown is not None:
            self._unknown.add(unknown)
            return unknown
        if transaction.given_up:
            return None
        name = next(target.topic for target in targets if not self._is_open(target))
        if name not in self._closed:
            self._closed[name] = _Closed(_sight(self._topics[name]), self._now, self._now + self._pause(name, 1))
            self._news.append(TopicStatusChange(name, finding.detail))
        return name

    def _is_open(self, target: Target) -> bool:
        topic = self._topics.get(target.topic)
        return topic is not None and topic.takes(target.partition)

    def _pause(self, name: str, looks: int) -> int:
        return self._policy.pause_after(looks, f"{name}/{self.owner}")

    # --- which topics to look at --------------------------------------------------------------------------------

    def turn(self, now: int) -> set[str]:
        """Begin a turn; return the topics that are to be looked at again. What was learned long ago is dropped.

        Args:
            now: Monotonic ms.
        """
        self._now = now
        if now - self._known_since >= KNOWN_MS:
            self._topics = {name: self._topics[name] for name in self._closed}
            self._known_since = now
        return {name for name, closed in self._closed.items() if closed.due <= now}

    def unknown(self) -> set[str]:
        """Return the topics that must be looked at before those who wait for them can be judged."""
        return set(self._unknown)

    def learn(self, names: Collection[str], found: Mapping[str, RealTopic], waited_for: Collection[str]) -> Looked:
        """Take the result of a look at topics.

        Args:
            names: The topics.
            found: Those of them that exist.
            waited_for: Those of them for which a transaction waits.
        """
        looked = Looked(set(), set())
        for name in names:
            self._topics[name] = found.get(name)
            if name in self._unknown:
                self._unknown.discard(name)
                looked.opened.add(name)
            if name in self._closed:
                self._look(name, self._closed[name], looked, waited_for)
        return looked

    def refresh(self, names: Collection[str], found: Mapping[str, RealTopic], waited_for: Collection[str]) -> Looked:
        """As `learn`, in the middle of a turn: a topic that is worse than before counts only at the next look.

        Else what was handed out a moment ago would be discarded at once.
        """
        better = [name for name in names if name not in self._topics or _is_better(found.get(name), self._topics[name])]
        return self.learn(better, found, waited_for)

    def _look(self, name: str, closed: _Closed, looked: Looked, waited_for: Collection[str]) -> None:
        if _sight(self._topics[name]) != closed.seen:
            del self._closed[name]
            self._news.append(TopicStatusChange(name, ""))
            looked.opened.add(name)
            return
        if name not in waited_for:
            del self._closed[name]
            return
        closed.looks += 1
        closed.due = self._now + self._pause(name, closed.looks)
        topic = self._topics[name]
        is_away = topic is not None and topic.unavailable
        if self._now - closed.since >= self._policy.max_age and not is_away:
            looked.given_up.add(name)

    def postpone(self, names: Collection[str]) -> None:
        """Look at topics later that could not be looked at; the time that they are given begins again."""
        for name in names:
            closed = self._closed[name]
            closed.since = self._now
            closed.looks += 1
            closed.due = self._now + self._pause(name, closed.looks)

    def take_news(self) -> list[TopicStatusChange]:
        """Return what has happened since the last call."""
        taken, self._news = self._news, []
        return taken


def _is_better(topic: RealTopic | None, before: RealTopic | None) -> bool:
    """Whether a topic takes all that it took before."""
    if topic is None or topic.lacks or topic.unavailable or topic.internal:
        return False
    return before is None or topic.partitions >= before.partitions


def _sight(topic: RealTopic | None) -> object:
    """Return what of a topic decides whether it can take a message; its other settings come later."""
    return None if topic is None else (topic.partitions, topic.lacks, topic.unavailable, topic.internal)
