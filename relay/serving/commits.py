"""The Kafka transactions of one half partition: records and both checkpoints, or neither (R15)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confluent_kafka import TopicPartition

from outbox._kafka.channel import ChannelDescription
from outbox.protocol.record import Record
from relay import metrics
from relay.kafka.transactional_delivery import Delivery
from relay.ledger.ledger import Ledger

PROGRESS_SECONDS = 1.0
"""Progress without a delivery (rollbacks) is committed after this time."""
HEARTBEAT_SECONDS = 3_600.0
"""An idle partition commits its checkpoint again, so that offsets and ids never expire (R22)."""


class Commits:
    """Commits what a ledger hands out.

    Args:
        ledger: The ledger.
        channel: The channel.
        delivery: The transactional producer, already initialised.
        group_metadata: Returns the newest metadata of the subscribed consumer.
    """

    def __init__(
        self, ledger: Ledger, channel: ChannelDescription, delivery: Delivery, group_metadata: Callable[[], bytes]
    ) -> None:
        self.channel = channel
        self.delivery = delivery
        self._ledger = ledger
        self._group_metadata = group_metadata
        self._committed = (ledger.half_checkpoint(), ledger.op_checkpoint())
        self._committed_at = time.monotonic()

    def commit(self, records: Sequence[Record]) -> None:
        """Write records and the checkpoints in one Kafka transaction.

        Raises:
            DeliveryError: It failed. Neither the delivery nor the ledger may be used again (R17).
        """
        half, op = self._ledger.half_checkpoint(), self._ledger.op_checkpoint()
        topics, partition = self.channel, self._ledger.partition
        offsets = [
            TopicPartition(topics.half.name, partition, half.offset, half.encode(topics.half.id, partition)),
            TopicPartition(topics.op.name, partition, op.offset, op.encode(topics.op.id, partition)),
        ]
        with metrics.COMMIT_SECONDS.time():
            self.delivery.commit(records, offsets, self._group_metadata())
        self._committed, self._committed_at = (half, op), time.monotonic()
        if records:
            metrics.BATCH_MESSAGES.observe(len(records))

    def is_due(self) -> bool:
        """Return whether progress without a delivery, or the heartbeat, is to be committed."""
        idle = time.monotonic() - self._committed_at
        if idle < PROGRESS_SECONDS:
            return False
        now = (self._ledger.half_checkpoint(), self._ledger.op_checkpoint())
        return now != self._committed or idle >= HEARTBEAT_SECONDS

    def settled(self) -> int:
        """Return the committed checkpoints as one number that grows with each record that is settled."""
        half, op = self._committed
        return 2 * half.head - sum(map(len, half.unsettled)) + op.head + op.offset
