"""The gate: which real topics can take messages, and which transactions wait because theirs cannot. Pure.

A topic may be created a moment after its first message, metadata may be late, a topic may grow, a right may be granted:
none of these is worth a discard, which needs an operator. Such a topic is described again, with back-off. What is for
it stays where it is, in its order; all others go on. What waits for a topic for longer than `max_age` is
handed out, and pre-flight discards it. What waits for a topic that exists, but whose broker is away, waits as long as
there is room.

The worker describes the topics. Times are monotonic ms: the broker's clock leaps while a relay catches up.
"""

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from outbox.protocol.names import Channel
from relay.delivery.rules.allow_list import EVERYTHING, AllowList
from relay.delivery.rules.outgoing import OutgoingTransaction, Target
from relay.delivery.rules.preflight import PASSING, RealTopic, inspect, inspect_target

METADATA_MAX_AGE_MS = 5_000
"""Time for which the gate uses the metadata of a topic; the next metadata may come from a cache."""

MOST_DESCRIBED = 1_000
"""Closed topics that one turn describes again, which takes Kafka a quarter of a second."""


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """How long to wait for a real topic."""

    max_age: int = 60_000  # how long transactions wait for a topic, ms
    pause: int = 100  # pause before a topic is described again, ms; it doubles each time
    pause_max: int = 5_000  # the longest pause, ms

    def pause_after(self, describes: int, who: str) -> int:
        """Return the pause after a topic was described so many times, ms."""
        return growing_pause(self.pause, self.pause_max, describes, who)


def growing_pause(first: int, most: int, times: int, who: str) -> int:
    """Return the pause after so many times, ms: twice as long each time, and spread by up to 10 % to avoid waves."""
    exact = min(first << min(times - 1, 20), most)
    spread = zlib.crc32(f"{who}/{times}".encode()) % 201 - 100
    return exact + exact * spread // 1_000


class TopicStatusChange(NamedTuple):
    """Transactions begin to wait for a real topic, for the reason in `detail`; without one they wait no longer."""

    topic: str
    detail: str


class GateChange(NamedTuple):
    """What new metadata of real topics changes for the transactions that wait for them."""

    opened: set[str]  # topics that may take them now: the gate decides again
    given_up: set[str]  # topics for which they wait no longer, although nothing has changed


@dataclass(slots=True)
class _Closed:
    """A real topic that cannot take some transactions."""

    condition: object  # what closed it, see `_condition`; any change opens the topic
    since: int  # when the waiting began, monotonic ms
    due: int  # when to describe it again, monotonic ms
    asked: int  # when a transaction last had to wait for it, monotonic ms
    describes: int = 1


class Gate:
    """What is known of the real topics of one half partition or table source, and which of them are closed.

    It holds no transaction: those that wait are elsewhere.
    """

    def __init__(self, policy: GatePolicy, channel: Channel, owner: int | str, allowed: AllowList = EVERYTHING) -> None:
        self._policy = policy
        self._channel = channel
        self.owner = owner
        self.allowed = allowed
        self._now = 0
        self._fetched_at = 0
        self._topics: dict[str, RealTopic | None] = {}  # None: it does not exist
        self._unknown: set[str] = set()
        self._arrived: set[str] = set()  # described since the last turn, however long that took
        self._closed: dict[str, _Closed] = {}
        self._news: list[TopicStatusChange] = []

    @property
    def topics(self) -> Mapping[str, RealTopic | None]:
        """What is known of real topics; None of one that does not exist. Pre-flight must see the same."""
        return self._topics

    # --- which transactions may go

    def closed_to(self, transaction: OutgoingTransaction) -> str | None:
        """Return the real topic for which a committed transaction must wait; None if it may be handed out.

        The topic is one of `unknown()`, or one that cannot take a message of the transaction now. A transaction that
        pre-flight will refuse may be handed out: for a final reason, or because it was given up.
        """
        topics = self._topics
        for message in transaction.counted():
            target = message.target()
            topic = topics.get(target.topic) if target else None
            if target is None or topic is None or not topic.takes(target.partition):
                return self._closed_to(transaction)
        return None

    def _closed_to(self, transaction: OutgoingTransaction) -> str | None:
        if not transaction.may_wait():
            return None
        finding = inspect(transaction, self._topics, self._channel, allowed=self.allowed, bodies=False)
        if finding is None or finding.reason not in PASSING:
            return None
        targets = [target for message in transaction.counted() if (target := message.target())]
        unknown = dict.fromkeys(target.topic for target in targets if target.topic not in self._topics)
        if unknown:  # all at once: a transaction may have thousands of topics
            self._unknown |= unknown.keys()
            return next(iter(unknown))
        if transaction.given_up:
            return None
        name = next(target.topic for target in targets if not self._is_open(target))
        if name in self._closed:
            self._closed[name].asked = self._now
        else:
            due = self._now + self._pause(name, 1)
            self._closed[name] = _Closed(_condition(self._topics[name]), self._now, due, self._now)
            self._news.append(TopicStatusChange(name, finding.detail))
        return name

    def _is_open(self, target: Target) -> bool:
        topic = self._topics.get(target.topic)
        return topic is not None and topic.takes(target.partition)

    def _pause(self, name: str, describes: int) -> int:
        return self._policy.pause_after(describes, f"{name}/{self.owner}")

    def need(self, service: str, target: Target) -> None:
        """Have a topic described, if nothing is known of it and a service may write to it."""
        if target.topic not in self._topics:
            finding = inspect_target(service, target, self._topics, self._channel, self.allowed)
            if finding is not None and finding.reason in PASSING:
                self._unknown.add(target.topic)

    def open_to(self, service: str, target: Target) -> RealTopic | None:
        """Return a real topic that takes all messages of a service to a target now; None: it may not."""
        found = self._topics.get(target.topic)
        against = inspect_target(service, target, self._topics, self._channel, self.allowed)
        return found if against is None else None

    # --- which topics to describe -------------------------------------------------------------------------------

    def turn(self, now: int, *, is_stale: bool = False) -> set[str]:
        """Begin a turn; return the topics to describe again. Metadata that is old, or stale (R80), is dropped."""
        self._now = now
        if is_stale:
            self._arrived.clear()
            for closed in self._closed.values():
                closed.due = now
        if is_stale or now - self._fetched_at >= METADATA_MAX_AGE_MS:
            kept = self._closed.keys() | self._arrived
            self._topics = {name: topic for name, topic in self._topics.items() if name in kept}
            self._fetched_at = now
        self._arrived.clear()
        due = sorted((closed.due, name) for name, closed in self._closed.items() if closed.due <= now)
        return {name for _, name in due[:MOST_DESCRIBED]}

    def unknown(self) -> set[str]:
        """Return the topics that must be described before the gate can decide on the transactions for them."""
        return set(self._unknown)

    def update(self, names: Collection[str], found: Mapping[str, RealTopic], waited_for: Collection[str]) -> GateChange:
        """Take new metadata of topics."""
        change = GateChange(set(), set())
        for name in names:
            self._topics[name] = found.get(name)
            if name in self._unknown:
                self._unknown.discard(name)
                self._arrived.add(name)
                change.opened.add(name)
            if name in self._closed:
                self._update_closed(name, self._closed[name], change, waited_for)
        return change

    def update_better(
        self, names: Collection[str], found: Mapping[str, RealTopic], waited_for: Collection[str]
    ) -> GateChange:
        """As `update`, in the middle of a turn: only metadata by which a topic takes all that it took before is taken.

        Otherwise pre-flight would discard what was handed out a moment ago.
        """
        better = [name for name in names if name not in self._topics or _is_better(found.get(name), self._topics[name])]
        return self.update(better, found, waited_for)

    def _update_closed(self, name: str, closed: _Closed, change: GateChange, waited_for: Collection[str]) -> None:
        if _condition(self._topics[name]) != closed.condition:
            del self._closed[name]
            self._news.append(TopicStatusChange(name, ""))
            change.opened.add(name)
            return
        if name in waited_for:
            closed.asked = self._now
        elif self._now - closed.asked >= 2 * self._policy.pause_max:  # what was released a moment ago asks again
            del self._closed[name]
            return
        closed.describes += 1
        closed.due = self._now + self._pause(name, closed.describes)
        topic = self._topics[name]
        is_away = topic is not None and topic.unavailable
        if self._now - closed.since >= self._policy.max_age and not is_away:
            change.given_up.add(name)

    def postpone(self, names: Collection[str]) -> None:
        """Describe topics later that could not be described; the time that they are waited for begins again."""
        for name in names:
            closed = self._closed[name]
            closed.since = self._now
            closed.describes += 1
            closed.due = self._now + self._pause(name, closed.describes)

    def take_news(self) -> list[TopicStatusChange]:
        """Return what has happened since the last call."""
        taken, self._news = self._news, []
        return taken


def _is_better(topic: RealTopic | None, before: RealTopic | None) -> bool:
    """Whether a topic takes all that it took before."""
    if topic is None or topic.lacks or topic.unavailable or topic.internal:
        return False
    return before is None or topic.partitions >= before.partitions


def _condition(topic: RealTopic | None) -> object:
    return None if topic is None else (topic.partitions, topic.lacks, topic.unavailable, topic.internal)
