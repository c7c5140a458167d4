"""Real topics whose records Kafka did not acknowledge: each is closed for a while, so that all others go on. Pure.

A description shows a missing leader, too few in-sync replicas or a missing right. Other causes show only in the reports
on a batch that failed: a broker that the relay cannot reach, a full disk, a validation that only the broker makes. Such
a topic is closed in its half partition's gate for a multiple of the time that the failure cost. Each further failure
doubles that, and a delivery ends it. No transaction is discarded for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaError

from relay.delivery.error_policy import FENCED, TIME_OUTS, Undelivered

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
    """The reports on a failed batch.

    Args:
        errors: The topics to blame, with the name of Kafka's error.
        is_certain: Whether the connection cannot be the cause: another error than a time-out, or another topic's
            records were acknowledged.
    """

    errors: Mapping[str, str]
    is_certain: bool


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
    """A topic that failed.

    Args:
        failures: How often, since a record was delivered there.
        until: When it is tried again, monotonic ms.
        at: When it failed last, monotonic ms.
    """

    failures: int
    until: int
    error: str
    at: int


class Refusals:
    """The closed topics of one half partition. They outlast a take-over, which follows every failure."""

    def __init__(self) -> None:
        self._closed: dict[str, _Closed] = {}

    def __bool__(self) -> bool:
        """Return whether a topic has failed since a record was delivered there."""
        return bool(self._closed)

    def failed(self, found: Blame, cost: int, now: int) -> Mapping[str, int]:
        """Close the topics to blame.

        Where the connection may be the cause, only the second failure closes a topic.

        Args:
            cost: Duration of the failed Kafka transaction, ms.
            now: Monotonic ms.

        Returns:
            For how long each topic is closed, ms.
        """
        pauses: dict[str, int] = {}
        for topic, error in found.errors.items():
            failures = self._closed[topic].failures + 1 if topic in self._closed else 1
            if found.is_certain or failures > 1:
                pauses[topic] = min(max(cost, PAUSE_MS_MIN) << min(failures, 20), PAUSE_MS_MAX)
            self._closed[topic] = _Closed(failures, now + pauses.get(topic, 0), error, now)
        return pauses

    def brokers_changed(self, at: int) -> None:
        """Forget failures before a broker was lost or came back, and of which that may be the cause (R80).

        Args:
            at: When, monotonic ms.
        """
        for topic, closed in list(self._closed.items()):
            if closed.at < at and closed.error in _OF_A_BROKER:
                del self._closed[topic]

    def delivered(self, topics: Collection[str]) -> None:
        """Forget the failures of topics that took records."""
        for topic in self._closed.keys() & topics:
            del self._closed[topic]

    def why_closed(self, topic: str, now: int) -> str:
        """Return why nothing may be written to a topic at this monotonic time (ms); empty if something may."""
        closed = self._closed.get(topic)
        return f"records were not acknowledged ({closed.error})" if closed and now < closed.until else ""
