"""The Kafka transactions of one half partition: records and all checkpoints, or nothing (R15)."""

import time
from collections.abc import Callable, Sequence

from confluent_kafka import TopicPartition

from outbox._kafka.channel import ChannelDescription
from outbox._rules.topic_description import TopicDescription
from outbox._service.membership import generation
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from outbox.protocol.record import Record
from relay import metrics
from relay.delivery.at_least_once_delivery import Delivery
from relay.delivery.producer import DeliveryError
from relay.half.ledger.ledger import Ledger

PROGRESS_SECONDS = 1.0
"""Progress without a delivery (rollbacks) is committed after this time."""
HEARTBEAT_SECONDS = 3_600.0
"""An idle partition commits its checkpoint again, so that offsets and ids never expire (R22)."""


class Commits:
    """Commits what a ledger hands out."""

    def __init__(
        self, ledger: Ledger, channel: ChannelDescription, delivery: Delivery, group_metadata: Callable[[], bytes]
    ) -> None:
        self.channel = channel
        self.delivery = delivery
        self._ledger = ledger
        self._group_metadata = group_metadata
        self._committed = ledger.checkpoints()
        self._committed_at = time.monotonic()

    def commit(self, records: Sequence[Record]) -> None:
        """Write records and the checkpoints in one Kafka transaction; if it fails, the ledger is void, too (R17)."""
        checkpoints, topics = self._ledger.checkpoints(), self.channel
        offsets = [
            self._place(topics.half, checkpoints.half),
            self._place(topics.op, checkpoints.op),
            self._place(topics.verdict, checkpoints.verdict),
        ]
        with metrics.COMMIT_SECONDS.labels().time():
            self.delivery.commit(records, offsets, self._group_metadata())
        self._committed, self._committed_at = checkpoints, time.monotonic()

    def _place(self, topic: TopicDescription, checkpoint: HalfCheckpoint | OpCheckpoint) -> TopicPartition:
        partition = self._ledger.partition
        return TopicPartition(topic.name, partition, checkpoint.offset, checkpoint.encode(topic.id, partition))

    def is_due(self) -> bool:
        """Return whether progress without a delivery, or the heartbeat, is to be committed."""
        idle = time.monotonic() - self._committed_at
        if idle < PROGRESS_SECONDS:
            return False
        return self._ledger.checkpoints() != self._committed or idle >= HEARTBEAT_SECONDS

    def settled(self) -> int:
        """Return the committed checkpoints as one number that grows with each record that is settled."""
        half, *ops = self._committed
        return 2 * half.head - sum(map(len, half.unsettled)) + sum(op.head + op.offset for op in ops)


class GroupMetadata:
    """The newest metadata of the subscribed consumer: its thread sets it, the workers' threads read it (R15, H5)."""

    def __init__(self) -> None:
        self.newest = b""

    def generation(self) -> int:
        """Return the generation of the group; negative: the consumer is in none."""
        return generation(self.newest)

    def for_commit(self) -> bytes:
        """Return the metadata for a commit; without a generation it would fence no other relay."""
        metadata = self.newest
        if (found := generation(metadata)) < 0:
            raise DeliveryError(
                f"the consumer has no generation (it has {found}): it is not a member of the relay's "
                "group at present; the commit is repeated after it has joined again"
            )
        return metadata
