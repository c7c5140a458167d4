"""Checkpoints that are committed without a Kafka transaction: by the service's thread, which the consumer belongs to.

confluent-kafka lets one thread at a time into a consumer, and a poll keeps it as long as it waits: a worker that
committed by itself would wait for one poll after another, up to a second.
"""

import threading
import time
from collections.abc import Collection, Iterable, Sequence
from functools import partial

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from relay.delivery.at_least_once_delivery import Commit
from relay.delivery.error_policy import Fault, Remedy, Step, remedy
from relay.delivery.producer import DeliveryError, delivery_error

PATIENCE_SECONDS = 10.0
"""Time for which a commit is tried again before its partition is taken over again."""

Offsets = Sequence[TopicPartition]

log = structlog.get_logger()


class OffsetCommits:
    """What workers want committed, until Kafka has acknowledged it. Newer offsets take the place of older ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served: set[int] = set()
        self._open: dict[int, Offsets] = {}
        self._unsent: set[int] = set()
        self._tried_since: dict[int, float] = {}
        self._failed: dict[int, KafkaError] = {}

    def serve(self, number: int) -> Commit:
        """Serve a partition number from now on; return what its worker commits by, without waiting."""
        with self._lock:
            self._served.add(number)
        return partial(self._want, number)

    def _want(self, number: int, offsets: Offsets) -> None:
        with self._lock:
            if number not in self._served:
                raise DeliveryError(
                    f"this relay no longer serves half partition {number}, so its offsets are not committed; "
                    "the new owner continues at the last checkpoint"
                )
            self._open[number] = offsets
            self._unsent.add(number)

    def failure(self, number: int) -> DeliveryError | None:
        """Why the offsets of a partition number are not committed, and will not be."""
        error = self._failed.get(number)
        return None if error is None else delivery_error(Step.OFFSETS, error)

    def send(self, consumer: Consumer) -> None:
        """Commit the wanted offsets; `acknowledged` takes the answers when the consumer is polled."""
        with self._lock:
            wanted = [place for number in self._unsent for place in self._open[number]]
            self._unsent.clear()
        if not wanted:
            return
        try:
            consumer.commit(offsets=wanted, asynchronous=True)
        except KafkaException as error:
            self.acknowledged(error.args[0], wanted)

    def acknowledged(self, error: KafkaError | None, places: Iterable[TopicPartition]) -> None:
        """Take an answer of librdkafka's `on_commit`: one error for all, or one for each partition."""
        with self._lock:
            for place in places:
                self._acknowledge(place, error or place.error)

    def _acknowledge(self, place: TopicPartition, error: KafkaError | None) -> None:
        number, now = place.partition, time.monotonic()
        if number not in self._open:
            return
        if error is None:
            self._acknowledged(place)
        elif (
            remedy(Fault.of(error), Step.OFFSETS) is Remedy.RETRY
            and now < self._tried_since.setdefault(number, now) + PATIENCE_SECONDS
        ):
            self._unsent.add(number)
        else:
            self._failed[number] = error
            self._forget(number)

    def _acknowledged(self, place: TopicPartition) -> None:
        """Nothing is open any more once all places of the newest offsets are acknowledged."""
        left = [wanted for wanted in self._open[place.partition] if not _is_same(wanted, place)]
        self._open[place.partition] = left
        self._tried_since.pop(place.partition, None)
        if not left:
            self._forget(place.partition)

    def finish(self, consumer: Consumer, numbers: Collection[int]) -> None:
        """Commit what is still open of partitions that are given up, and wait for it.

        If that fails, the next owner begins at what was acknowledged before, and delivers once more what came after.
        """
        with self._lock:
            self._served.difference_update(numbers)
            wanted = [place for number in numbers for place in self._open.get(number, ())]
            for number in numbers:
                self._failed.pop(number, None)
                self._forget(number)
        if not wanted:
            return
        try:
            consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            log.warning("Checkpoint not committed, some messages are delivered again", error=error.args[0].str())

    def _forget(self, number: int) -> None:
        self._open.pop(number, None)
        self._unsent.discard(number)
        self._tried_since.pop(number, None)


def _is_same(wanted: TopicPartition, place: TopicPartition) -> bool:
    return (wanted.topic, wanted.offset, wanted.metadata) == (place.topic, place.offset, place.metadata)
