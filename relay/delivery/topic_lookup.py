"""Describes real topics for the gate of one owner; ends first what relays left open there (R31)."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import structlog

from outbox._kafka.topic_cache import TopicCache
from outbox._rules.topic_description import TopicDescription
from outbox.errors import KafkaUnreachable
from outbox.protocol.names import Channel
from relay.delivery.broker_watch import BrokerView, BrokerWatch
from relay.delivery.call_watch import calling
from relay.delivery.rules.allow_list import AllowList
from relay.delivery.rules.preflight import RealTopic, real_topic
from relay.delivery.rules.topic_gate import Gate, GateChange, GatePolicy
from relay.delivery.sending import Refusals

LEADERS_AWAITED_SECONDS = 2.0
"""Time for the partitions of a new topic to get leaders, before DELIVER is given up."""
PAUSE_SECONDS = 0.05

InHand = Callable[[], Collection[int]]
"""Returns the offsets of halves that are handed out and not committed yet; a table source has none."""

log = structlog.get_logger()


class WaitingTransactions(Protocol):
    """What waits for real topics: of a half partition, or of a table source."""

    def topics(self, among: Collection[str]) -> set[str]:
        """Return those of some topics for which a transaction waits."""

    def release(self, topics: Iterable[str], *, give_up: bool = False) -> None:
        """Let transactions that wait for real topics go on; with `give_up`, they wait for no topic any more."""


class HangingTransactions:
    """What former Kafka transactions of an owner may have left open: of one that writes without any, nothing."""

    def take_stale(self) -> Collection[str]:
        """Topics that were looked at, but before the last take-over: they must be looked at again."""
        return ()

    def end(self, topics: Mapping[str, int], in_hand: Collection[int] = frozenset()) -> Mapping[str, str]:
        """End what is left open on topics not looked at since the last take-over; return which are closed, and why."""
        del topics, in_hand
        return {}

    def stop(self) -> None:
        """Let looks, also later ones, fail at once."""


class TopicLookup:
    """Keeps a gate's metadata of real topics up to date, and releases what waits for them."""

    def __init__(
        self,
        waiting: WaitingTransactions,
        gate: Gate,
        topics: TopicCache,
        hanging: HangingTransactions,
        refusals: Refusals,
        brokers: BrokerWatch,
    ) -> None:
        self.gate = gate
        self._waiting = waiting
        self._topics = topics
        self._hanging = hanging
        self._refusals = refusals
        self._brokers = brokers
        self._view = BrokerView()
        self._is_stopping = False

    def stop(self) -> None:
        """End requests that are under way."""
        self._is_stopping = True
        self._hanging.stop()

    def describe_closed(self, now: int) -> None:
        """Describe closed topics whose pause is over. What was known before a broker was lost is dropped (R80)."""
        before, self._view = self._view, self._brokers.view()
        if is_stale := self._view != before:
            self._refusals.brokers_changed(int(self._view.since * 1_000))
        if names := self.gate.turn(now, is_stale=is_stale):
            try:
                found = self._described_again(names)
            except KafkaUnreachable as error:
                log.warning("Real topics not described", owner=self.gate.owner, error=str(error))
                self.gate.postpone(names)
            else:
                self._update(names, found, frozenset())

    def describe_stale(self) -> None:
        """Describe the topics on which a Kafka transaction may have been left open since they were described."""
        if stale := self._hanging.take_stale():
            self._update(stale, self._described(stale), frozenset())

    def describe_unknown(self, in_hand: InHand = frozenset) -> bool:
        """Describe the topics of which the gate has no metadata; return whether there were any."""
        names = self.gate.unknown()
        if names:
            self._update(names, self._described(names), in_hand())
        return bool(names)

    def describe_late(self, names: Collection[str], in_hand: InHand) -> None:
        """Describe the topics of discarded transactions: an operator may have created one a moment before DELIVER."""
        deadline = time.monotonic() + LEADERS_AWAITED_SECONDS
        while self.describe_again(names, in_hand) and time.monotonic() < deadline and not self._is_stopping:
            time.sleep(PAUSE_SECONDS)

    def describe_again(self, names: Collection[str], in_hand: InHand = frozenset) -> bool:
        """Describe topics in the middle of a turn; return whether one of them is unavailable."""
        found = self._real_topics(self._described_again(names), in_hand())
        self._release(self.gate.update_better(names, found, self._waiting.topics(names)))
        return any(topic.unavailable for topic in found.values())

    def _described(self, names: Collection[str]) -> dict[str, TopicDescription]:
        with calling("describing real topics"):
            return self._topics.describe(names, self._view.since)

    def _described_again(self, names: Collection[str]) -> dict[str, TopicDescription]:
        with calling("describing real topics"):
            return self._topics.describe_again(names)

    def _update(self, names: Collection[str], found: Mapping[str, TopicDescription], in_hand: Collection[int]) -> None:
        self._release(self.gate.update(names, self._real_topics(found, in_hand), self._waiting.topics(names)))

    def _release(self, change: GateChange) -> None:
        self._waiting.release(change.opened)
        self._waiting.release(change.given_up, give_up=True)

    def _real_topics(self, found: Mapping[str, TopicDescription], in_hand: Collection[int]) -> dict[str, RealTopic]:
        """Return what pre-flight must know of some topics, after what is left open there was ended."""
        partitions = {name: topic.partitions for name, topic in found.items() if not (topic.lacks or topic.of_channel)}
        with calling("looking for what is left open on real topics"):
            closed, now = self._hanging.end(partitions, in_hand), time.monotonic_ns() // 1_000_000
        return {
            name: real_topic(topic, closed.get(name) or self._refusals.why_closed(name, now), self._view.lost)
            for name, topic in found.items()
        }


class TopicLookups:
    """What the gates and look-ups of a process share."""

    def __init__(
        self, policy: GatePolicy, channel: Channel, topics: TopicCache, allowed: AllowList, brokers: BrokerWatch
    ) -> None:
        self._brokers = brokers
        self._policy = policy
        self._channel = channel
        self._topics = topics
        self._allowed = allowed

    def gate(self, owner: int | str) -> Gate:
        """Return a new gate of a half partition or a table source."""
        return Gate(self._policy, self._channel, owner, self._allowed)

    def lookup(
        self, waiting: WaitingTransactions, gate: Gate, hanging: HangingTransactions, refusals: Refusals
    ) -> TopicLookup:
        """Return the look-up for a gate; see `TopicLookup`."""
        return TopicLookup(waiting, gate, self._topics, hanging, refusals, self._brokers)
