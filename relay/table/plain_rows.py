"""Delivery at least once for a table source: records without a Kafka transaction, then its progress in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import TopicPartition

from relay.delivery.at_least_once_delivery import PlainDelivery
from relay.delivery.transactional_delivery import TransactionalDelivery


class PlainRows(PlainDelivery):
    """At least once, in order within one owner.

    Records are visible before the progress is committed. The progress stays in Kafka transactions, so that a former
    owner is fenced and cannot set it back.

    Args:
        group: Consumer group of the progress, and transactional id.
        patience: Multiple of the usual time-outs.
    """

    def __init__(
        self, kafka: Mapping[str, str], group: str, discard_topic: str, metadata: bytes, patience: int
    ) -> None:
        super().__init__(kafka, group, discard_topic, self._commit_progress, patience)
        self._metadata = metadata
        self._progress = TransactionalDelivery(kafka, group, patience, group)

    def _commit_progress(self, offsets: Sequence[TopicPartition]) -> None:
        self._progress.commit((), offsets, self._metadata)

    def renew(self) -> None:
        """See `Delivery`."""
        self._progress.renew()

    def close(self) -> None:
        """See `Delivery`."""
        super().close()
        self._progress.close()
