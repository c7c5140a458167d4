"""Delivery at least once: RocketMQ's own guarantee, for those who want its latency.

No Kafka transaction: records, flush, tombstones of the discard topic, flush, then the checkpoint by a plain commit of
the subscribed consumer. Whoever dies in between writes again what the checkpoint does not name yet. So a hand-over may
double and reorder, and a transaction of several messages becomes visible one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition

from outbox.failpoints import failpoint
from outbox.protocol.record import Record
from relay.delivery import batch_size, take_over
from relay.offset_commits import Commit
from relay.producing import SETTINGS, BatchProducer


class PlainDelivery:
    """At least once, in order within one owner.

    Making one ends what a transactional predecessor left open, as when the setting was changed.

    Args:
        kafka: librdkafka properties for the connection.
        transactional_id: One for each half partition.
        discard_topic: Its tombstones are written when all else is there.
        commit: Has offsets committed by a member of the relay's group, and does not wait. The group refuses them from
            who has lost its partitions; the service then ends the worker.

    Raises:
        ConfigurationError: Properties do not go together.
        DeliveryError: The transaction coordinator could not be reached within 10 s.
    """

    rest_ms = 0

    def __init__(
        self,
        kafka: Mapping[str, str],
        transactional_id: str,
        discard_topic: str,
        commit: Commit,
    ) -> None:
        self._discard_topic = discard_topic
        self._commit = commit
        self._config = {**SETTINGS, **kafka, "client.id": transactional_id}
        take_over({**self._config, "transactional.id": transactional_id}).close()
        self._producer = BatchProducer(self._config)

    def limit_batches(self, max_message_bytes: int) -> None:
        """See `Delivery`."""
        size = batch_size(max_message_bytes)
        if size < int(self._config["batch.size"]):
            self._config["batch.size"] = size
            self._producer.close()
            self._producer = BatchProducer(self._config)

    def commit(self, records: Iterable[Record], offsets: Sequence[TopicPartition], group_metadata: bytes) -> None:
        """See `Delivery`; the consumer's own membership takes the place of its metadata."""
        del group_metadata
        with self._producer.fatal_errors():
            self._write(records)
        self._commit(offsets)
        failpoint("relay.committed")

    def _write(self, records: Iterable[Record]) -> None:
        tombstones: list[Record] = []
        self._producer.produce(record for record in records if not self._comes_last(record, tombstones))
        failpoint("relay.produced")
        self._producer.flush()
        failpoint("relay.flushed")
        if tombstones:
            self._producer.produce(tombstones)
            self._producer.flush()

    def _comes_last(self, record: Record, tombstones: list[Record]) -> bool:
        """Whether a record removes something from the discard topic; it is put aside then."""
        is_last = record.value is None and record.topic == self._discard_topic
        if is_last:
            tombstones.append(record)
        return is_last

    def close(self) -> None:
        """See `Delivery`."""
        self._producer.close()
