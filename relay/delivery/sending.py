"""One Kafka transaction of an owner after the other, and what each teaches about topics and sizes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from relay.delivery import delivery_telemetry as report
from relay.delivery.producer import DeliveryError
from relay.delivery.refusals import Refusals, blame
from relay.delivery.rules.topic_gate import Gate
from relay.delivery.rules.volume import BatchPolicy, Volume
from relay.delivery.transactional_delivery import Delivery


class Sent(NamedTuple):
    """What one Kafka transaction has written, or tried to.

    Args:
        topics: Records by topic.
        size: Returns their approximate size, bytes.
        is_single: Whether it was one transaction, which cannot be split.
    """

    topics: Counter[str]
    size: Callable[[], int]
    is_single: bool

    @property
    def records(self) -> int:
        return self.topics.total()


class BatchFeedback:
    """The closed topics and the batch size of one owner.

    Args:
        discard_topic: It is written by every half partition, and never closed.
        request_seconds: Time-out of one request to Kafka.
    """

    def __init__(self, policy: BatchPolicy, discard_topic: str, request_seconds: float) -> None:
        self.policy = policy
        self.refusals = Refusals()
        self.volume = Volume(policy, request_seconds)
        self._discard_topic = discard_topic

    def failed(self, sent: Sent, error: DeliveryError, seconds: float, now: int) -> Mapping[str, int]:
        """Learn from a batch that failed.

        Args:
            seconds: Duration of its Kafka transaction.
            now: Monotonic ms.

        Returns:
            For how long real topics are closed, ms.
        """
        if error.timed_out:
            self.volume.timed_out(sent.records, sent.size(), is_single=sent.is_single)
        found = blame(sent.topics, error.undelivered)
        real = {topic: name for topic, name in found.errors.items() if topic != self._discard_topic}
        return self.refusals.failed(found._replace(errors=real), int(seconds * 1_000), now)

    def delivered(self, sent: Sent, seconds: float, *, timed_out: bool) -> None:
        """Learn from a batch that was committed.

        Args:
            seconds: Duration of its Kafka transaction.
            timed_out: Whether a request of it timed out, and was repeated.
        """
        if timed_out:
            self.volume.timed_out(sent.records, sent.size(), is_single=False)
        elif self.volume.is_reduced:
            self.volume.written(sent.records, sent.size(), seconds)
        if self.refusals:
            self.refusals.delivered(sent.topics.keys())


class Sending:
    """Writes the batches of one owner.

    Args:
        owner: Names it in logs: `partition` or `source`.
    """

    def __init__(self, delivery: Delivery, gate: Gate, feedback: BatchFeedback, owner: Mapping[str, int | str]) -> None:
        self._delivery = delivery
        self._gate = gate
        self._feedback = feedback
        self._owner = owner

    def send(self, sent: Sent, commit: Callable[[], None]) -> None:
        self._limit_batches(sent.topics)
        began = time.monotonic()
        try:
            commit()
        except DeliveryError as error:
            now = time.monotonic()
            closed = self._feedback.failed(sent, error, now - began, int(now * 1_000))
            report.failed(error, closed, self._feedback.volume.limit, **self._owner)
            raise
        self._feedback.delivered(sent, time.monotonic() - began, timed_out=self._delivery.timed_out)

    def _limit_batches(self, topics: Iterable[str]) -> None:
        """Keep record batches below what each of the topics takes."""
        found = (self._gate.topics.get(topic) for topic in topics)
        limits = [topic.max_message_bytes for topic in found if topic and not topic.lacks]
        if limits:
            self._delivery.limit_batches(min(limits))
