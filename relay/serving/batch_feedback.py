"""What failed batches taught about one half partition; it outlasts the take-over that follows every failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from outbox.protocol.record import Record
from relay.batching.batch import Batch
from relay.batching.pacing import BatchPolicy
from relay.batching.volume import Volume
from relay.kafka.producer import DeliveryError
from relay.kafka.refusals import Refusals, blame


class BatchFeedback:
    """The closed topics and the batch size of one half partition.

    Args:
        discard_topic: It is written by every half partition, and never closed.
        request_seconds: Time-out of one request to Kafka.
    """

    def __init__(self, policy: BatchPolicy, discard_topic: str, request_seconds: float) -> None:
        self.policy = policy
        self.refusals = Refusals()
        self.volume = Volume(policy, request_seconds)
        self._discard_topic = discard_topic

    def failed(
        self, batch: Batch, records: Sequence[Record], error: DeliveryError, seconds: float, now: int
    ) -> Mapping[str, int]:
        """Learn from a batch that failed.

        Args:
            seconds: Duration of its Kafka transaction.
            now: Monotonic ms.

        Returns:
            For how long real topics are closed, ms.
        """
        if error.timed_out:
            self.volume.timed_out(len(records), batch.size(), is_single=batch.is_single())
        found = blame(Counter(record.topic for record in records), error.undelivered)
        real = {topic: name for topic, name in found.errors.items() if topic != self._discard_topic}
        return self.refusals.failed(found._replace(errors=real), int(seconds * 1_000), now)

    def delivered(self, batch: Batch, records: Sequence[Record], seconds: float, *, timed_out: bool) -> None:
        """Learn from a batch that was committed.

        Args:
            seconds: Duration of its Kafka transaction.
            timed_out: Whether a request of it timed out, and was repeated.
        """
        if timed_out:
            self.volume.timed_out(len(records), batch.size(), is_single=False)
        elif self.volume.is_reduced:
            self.volume.written(len(records), batch.size(), seconds)
        if self.refusals:
            self.refusals.delivered({record.topic for record in records})
