"""One Kafka transaction of an owner after the other, and what each teaches about topics and sizes.

Real topics whose records Kafka did not acknowledge are closed for a while, so that all others go on. A description
shows a missing leader, too few in-sync replicas or a missing right. Other causes show only in the reports on a batch
that failed: a broker that the relay cannot reach, a full disk, a validation that only the broker makes. Such a topic is
closed in its half partition's gate for a multiple of the time that the failure cost. Each further failure doubles that,
and a delivery ends it. No transaction is discarded for it.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError

from relay.delivery import delivery_telemetry as report
from relay.delivery.at_least_once_delivery import Delivery
from relay.delivery.error_policy import FENCED, TIME_OUTS, Undelivered
from relay.delivery.producer import DeliveryError
from relay.delivery.rules.topic_gate import Gate
from relay.delivery.rules.volume import BatchPolicy, Volume

PAUSE_MS_MIN = 1_000
PAUSE_MS_MAX = 300_000

_OF_THE_PRODUCER = FENCED | frozenset(
    {
        KafkaError._FATAL,  # noqa: SLF001 - librdkafka's own codes carry an underscore
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - as above
        KafkaError._PURGE_QUEUE,  # noqa: SLF001 - as above
        KafkaError._STATE,  # noqa: SLF001 - as above
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""Errors that name a record's topic but are not about it."""

_OF_A_BROKER = frozenset(
    KafkaError(code).name()
    for code in TIME_OUTS | {KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
"""Errors that another set of brokers may end."""


class Blame(NamedTuple):
    """The reports on a failed batch."""

    errors: Mapping[str, str]  # the topics to blame, with the name of Kafka's error
    is_certain: bool
    """Whether the connection cannot be the cause: some records were acknowledged, or an error was no time-out."""


def blame(written: Counter[str], undelivered: Iterable[Undelivered]) -> Blame:
    """Find the topics that made a batch fail.

    A topic of which some records were acknowledged is not to blame for a time-out: the batch was too large.
    """
    missing: Counter[str] = Counter()
    errors: dict[str, str] = {}
    refused: set[str] = set()
    for topic, error in undelivered:
        missing[topic] += 1
        if error.code() not in _OF_THE_PRODUCER and (topic not in errors or error.code() not in TIME_OUTS):
            errors[topic] = error.name()
        if error.code() not in TIME_OUTS | _OF_THE_PRODUCER:
            refused.add(topic)
    blamed = {topic: name for topic, name in errors.items() if topic in refused or missing[topic] >= written[topic]}
    return Blame(blamed, bool(refused) or missing.total() < written.total())


class _Closed(NamedTuple):
    """A topic that failed."""

    failures: int  # how often, since a record was delivered there
    until: int  # when it is tried again, monotonic ms
    error: str
    at: int  # when it failed last, monotonic ms


class Refusals:
    """The closed topics of one half partition. They outlast a take-over, which follows every failure."""

    def __init__(self) -> None:
        self._closed: dict[str, _Closed] = {}

    def __bool__(self) -> bool:
        """Return whether a topic has failed since a record was delivered there."""
        return bool(self._closed)

    def failed(self, found: Blame, cost: int, now: int) -> Mapping[str, int]:
        """Close the topics to blame; return for how long each is closed, ms.

        Where the connection may be the cause, only the second failure closes a topic.
        """
        pauses: dict[str, int] = {}
        for topic, error in found.errors.items():
            failures = self._closed[topic].failures + 1 if topic in self._closed else 1
            if found.is_certain or failures > 1:
                pauses[topic] = min(max(cost, PAUSE_MS_MIN) << min(failures, 20), PAUSE_MS_MAX)
            self._closed[topic] = _Closed(failures, now + pauses.get(topic, 0), error, now)
        return pauses

    def brokers_changed(self, at: int) -> None:
        """Forget failures before this monotonic time (ms) that a broker's loss or return may have caused (R80)."""
        for topic, closed in list(self._closed.items()):
            if closed.at < at and closed.error in _OF_A_BROKER:
                del self._closed[topic]

    def delivered(self, topics: Collection[str]) -> None:
        for topic in self._closed.keys() & topics:
            del self._closed[topic]

    def why_closed(self, topic: str, now: int) -> str:
        """Return why nothing may be written to a topic at this monotonic time (ms); empty if something may."""
        closed = self._closed.get(topic)
        return f"records were not acknowledged ({closed.error})" if closed and now < closed.until else ""


class Sent(NamedTuple):
    """What one Kafka transaction has written, or tried to."""

    topics: Counter[str]  # records by topic
    size: Callable[[], int]  # returns their approximate size, bytes
    is_single: bool  # whether it was one transaction, which cannot be split


class BatchFeedback:
    """The closed topics and the batch size of one owner; the discard topic is never closed."""

    def __init__(self, policy: BatchPolicy, discard_topic: str, request_seconds: float) -> None:
        self.policy = policy
        self.refusals = Refusals()
        self.volume = Volume(policy, request_seconds)
        self._discard_topic = discard_topic

    def failed(self, sent: Sent, error: DeliveryError, seconds: float, now: int) -> Mapping[str, int]:
        """Learn from a batch that failed; return for how long real topics are closed, ms."""
        if error.timed_out:
            self.volume.timed_out(sent.topics.total(), sent.size(), is_single=sent.is_single)
        found = blame(sent.topics, error.undelivered)
        real = {topic: name for topic, name in found.errors.items() if topic != self._discard_topic}
        return self.refusals.failed(found._replace(errors=real), int(seconds * 1_000), now)

    def not_taken_over(self, **owner: int | str) -> None:
        """Let the next producer have the usual time-outs: it may be that Kafka refuses longer ones."""
        if self.volume.patience > 1:
            report.usual_time_outs(**owner)
            self.volume.patience = 1

    def delivered(self, sent: Sent, seconds: float, *, timed_out: bool) -> None:
        if timed_out:
            self.volume.timed_out(sent.topics.total(), sent.size(), is_single=False)
        elif self.volume.is_reduced:
            self.volume.written(sent.topics.total(), sent.size(), seconds)
        if self.refusals:
            self.refusals.delivered(sent.topics.keys())


class Sending:
    """Writes the batches of one owner."""

    def __init__(self, delivery: Delivery, gate: Gate, feedback: BatchFeedback, owner: Mapping[str, int | str]) -> None:
        self._delivery = delivery
        self._gate = gate
        self._feedback = feedback
        self._owner = owner

    def send(self, sent: Sent, commit: Callable[[], None], since: float | None = None) -> None:
        """Write a batch, whose making began at this monotonic time; None: just now."""
        self._limit_batches(sent.topics)
        began = time.monotonic()
        try:
            commit()
        except DeliveryError as error:
            now = time.monotonic()
            closed = self._feedback.failed(sent, error, now - began, int(now * 1_000))
            report.failed(error, closed, self._feedback.volume.limit, **self._owner)
            raise
        took = time.monotonic() - (since or began)
        self._feedback.delivered(sent, took, timed_out=self._delivery.timed_out)

    def _limit_batches(self, topics: Iterable[str]) -> None:
        found = (self._gate.topics.get(topic) for topic in topics)
        limits = [topic.max_message_bytes for topic in found if topic and not topic.lacks]
        if limits:
            self._delivery.limit_batches(min(limits))
