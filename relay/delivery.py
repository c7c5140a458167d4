"""Delivery: one transactional producer of one half partition, and the Kafka transactions it writes.

Order inside a transaction (R15): messages, flush to zero with errors checked, offsets, commit. librdkafka does not
flush before it sends offsets, and a late EndTxn of the old protocol then only costs duplicates, never a message.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from outbox.cluster import checked_properties
from outbox.failpoints import failpoint
from relay import metrics
from relay.outgoing import Record

TRANSACTION_TIMEOUT_MS = 15_000
TAKE_OVER_SECONDS = 10.0
BATCH_OVERHEAD = 256
"""Bytes of a record batch beside its records, and to spare."""

SUSPICIOUS_COMMIT_SECONDS = 1.0
"""A commit that took longer may have been sent twice; its producer is not used again (R17, KAFKA-17754)."""

_SETTINGS: dict[str, str | int | bool] = {
    "acks": "all",
    "batch.size": 1_000_000,  # lowered for topics that take less, see limit_batches
    "delivery.report.only.error": True,
    "enable.idempotence": True,
    "linger.ms": 1,
    "message.max.bytes": 100_000_000,  # pre-flight compares each message with its own topic's limit
    "message.timeout.ms": 10_000,
    "partitioner": "murmur2_random",  # the partition that a Java producer would choose
    "queue.buffering.max.messages": 1_000_000,
    "retry.backoff.ms": 1,  # 100, the default, is what a small transaction waits for CONCURRENT_TRANSACTIONS
    "retry.backoff.max.ms": 100,
    "socket.timeout.ms": 5_000,
    "topic.metadata.propagation.max.ms": 2_000,
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
}


class DeliveryError(Exception):
    """A Kafka transaction whose outcome is not known to be a commit: make a fresh producer, read `committed()`.

    Args:
        message: What failed.
        fenced: Another owner has taken the partition over: give it up until the group has a new generation.
    """

    def __init__(self, message: str, *, fenced: bool = False) -> None:
        super().__init__(message)
        self.fenced = fenced


class Delivery:
    """The owner's producer. Making one fences the former owner and aborts its leftovers at once.

    Args:
        kafka: librdkafka properties for the connection.
        transactional_id: One for each half partition.

    Raises:
        ConfigurationError: Properties do not go together.
        DeliveryError: The transaction coordinator could not be reached within 10 s.
    """

    def __init__(self, kafka: Mapping[str, str], transactional_id: str) -> None:
        self._config = {**_SETTINGS, **kafka, "transactional.id": transactional_id, "client.id": transactional_id}
        self._failed: list[KafkaError] = []
        self._producer = self._open()

    def _open(self) -> Producer:
        with checked_properties():
            producer = Producer({**self._config, "on_delivery": self._report})
        try:
            producer.init_transactions(TAKE_OVER_SECONDS)
        except KafkaException as error:
            raise _delivery_error("taking the partition over", error) from error
        metrics.PRODUCERS.inc()
        return producer

    def _report(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def limit_batches(self, max_message_bytes: int) -> None:
        """Send no batch that is larger than a topic takes: librdkafka knows no topic's `max.message.bytes`.

        Call it between Kafka transactions only.

        Args:
            max_message_bytes: The lowest limit of the topics to come.

        Raises:
            DeliveryError: The transaction coordinator could not be reached within 30 s.
        """
        size = max(max_message_bytes - BATCH_OVERHEAD, 1)
        if size < int(self._config["batch.size"]):
            self._config["batch.size"] = size
            self.close()
            self._producer = self._open()

    def commit(self, records: Iterable[Record], offsets: Sequence[TopicPartition], group_metadata: bytes) -> None:
        """Write records and offsets in one Kafka transaction.

        Args:
            records: What becomes visible with the commit; may be empty.
            offsets: The checkpoint: offsets with metadata.
            group_metadata: Of the subscribed consumer, generation 0 or more (R15).

        Raises:
            DeliveryError: The outcome is not known to be a commit. This object is of no further use.
        """
        started = time.monotonic()
        try:
            self._producer.begin_transaction()
            self._fill(records, offsets, group_metadata)
            self._producer.commit_transaction(-1)
            failpoint("relay.committed")
        except KafkaException as error:
            raise _delivery_error("a Kafka transaction", error) from error
        except SystemError as error:
            raise _delivery_error("a Kafka transaction", self._fatal_error()) from error
        if _is_suspicious(time.monotonic() - started):
            self._producer = self._open()

    def _fill(self, records: Iterable[Record], offsets: Sequence[TopicPartition], group_metadata: bytes) -> None:
        """Messages, flush, offsets: in this order (R15)."""
        self._produce(records)
        failpoint("relay.produced")
        self._flush()
        failpoint("relay.flushed")
        self._producer.send_offsets_to_transaction(list(offsets), group_metadata, 10.0)
        failpoint("relay.offsets_sent")

    def _produce(self, records: Iterable[Record]) -> None:
        first = True
        for record in records:
            self._produce_one(record)
            if first:
                failpoint("relay.producing")
                first = False

    def _produce_one(self, record: Record) -> None:
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    None,
                    None,
                    record.timestamp,
                    record.headers,
                )
            except BufferError:
                self._producer.poll(0.1)  # the local queue is full; wait until librdkafka has sent some of it
            else:
                return

    def _fatal_error(self) -> KafkaException:
        """What has befallen the producer.

        confluent-kafka sets the exception of a fatal error, and then serves delivery reports all the same: what comes
        out is the interpreter's own SystemError, with or without the cause. The producer tells it once more.
        """
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            return error
        raise DeliveryError("a Kafka transaction failed, and its producer does not say why")

    def _flush(self) -> None:
        left = self._producer.flush(TRANSACTION_TIMEOUT_MS / 1000)
        if self._failed:
            raise _delivery_error("a message of a Kafka transaction", KafkaException(self._failed[0]))
        if left:
            raise DeliveryError(f"{left} messages were not acknowledged within {TRANSACTION_TIMEOUT_MS} ms")

    def close(self) -> None:
        """Let the producer go without waiting: an open transaction is aborted by the next owner's take-over."""
        with suppress(KafkaException):
            self._producer.purge()
        del self._producer


def _is_suspicious(seconds: float) -> bool:
    """Whether a commit that took so long may have been sent twice (R17)."""
    return seconds > SUSPICIOUS_COMMIT_SECONDS


def _delivery_error(what: str, error: KafkaException) -> DeliveryError:
    cause: KafkaError = error.args[0]
    fenced = cause.code() in {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001 - librdkafka's own codes carry an underscore
    return DeliveryError(f"{what} failed: {cause.name()}: {cause.str()}", fenced=fenced)
