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

    def delivered(self, sent: Sent, seconds: float, *, timed_out: bool) -> None:
        """Learn from a batch that was committed."""
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
