"""One Kafka transaction of an owner after the other, and what each teaches about topics and sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from relay.delivery import telemetry as report
from relay.delivery.batch_feedback import BatchFeedback, Sent
from relay.delivery.producer import DeliveryError
from relay.delivery.rules.topic_gate import Gate
from relay.delivery.transactional_delivery import Delivery


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
        """Write a batch."""
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
