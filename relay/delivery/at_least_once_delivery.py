"""Delivery at least once: RocketMQ's own guarantee, for those who want its latency.

No Kafka transaction: records, flush, tombstones of the discard topic, flush, then the checkpoint by a plain commit of
the subscribed consumer. A relay that dies in between repeats what the checkpoint does not name yet. So a hand-over may
double and reorder, and a transaction of several messages becomes visible one by one.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition

from outbox._failpoints import failpoint
from outbox.protocol.record import Record
from relay.delivery.producer import SETTINGS, BatchProducer
from relay.delivery.rules.volume import BatchSize
from relay.delivery.transactional_delivery import TransactionalDelivery, take_over, with_patience

Commit = Callable[[Sequence[TopicPartition]], None]
"""Has offsets committed."""


class PlainDelivery:
    """At least once, in order within one owner.

    Making one ends what a transactional predecessor left open, as when the setting was changed.
    Tombstones of the discard topic are written when all else is there. A member of the relay's group commits offsets,
    which is not waited for. The group refuses them from who has lost its partitions; the service then ends the worker.
    """

    rest_ms = 0
    timed_out = False

    def __init__(
        self, kafka: Mapping[str, str], transactional_id: str, discard_topic: str, commit: Commit, patience: int = 1
    ) -> None:
        self._discard_topic = discard_topic
        self._commit = commit
        usual = {**SETTINGS, **kafka}
        take_over({**usual, "client.id": transactional_id, "transactional.id": transactional_id}).close()
        self._config = {**usual, **with_patience(usual, patience), "client.id": transactional_id}
        self._batch_size = BatchSize(int(self._config["batch.size"]), time.monotonic())
        self._producer = BatchProducer(self._config)

    def renew(self) -> None:
        """See `TransactionalDelivery`: this producer needs no coordinator."""

    def limit_batches(self, max_message_bytes: int) -> None:
        size = self._batch_size.for_topics(max_message_bytes, time.monotonic())
        if size != int(self._config["batch.size"]):
            self._config["batch.size"] = size
            self._producer.close()
            self._producer = BatchProducer(self._config)

    def commit(self, records: Iterable[Record], offsets: Sequence[TopicPartition], group_metadata: bytes) -> None:
        """See `TransactionalDelivery`; the consumer's own membership takes the place of its metadata."""
        del group_metadata
        with self._producer.fatal_errors():
            self._write(records)
            self._producer.listen()
            self.timed_out = self._producer.take_timed_out()
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
        self._producer.close()


Delivery = TransactionalDelivery | PlainDelivery
"""What writes the batches of one half partition, and belongs to its owner alone."""
