"""Consume with confluent-kafka: each message in a transaction of its own, its offset after that transaction."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from outbox._postgres.optional_packages import extra

with extra("confluent-kafka", "Inbox.run()"):
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from outbox._consume.trial import DEAD_LETTER_BYTES, DEAD_LETTER_SECONDS, Place, Trial, no_such_topic
from outbox._kafka.client_log import logged
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.produce import write_all
from outbox.errors import ConfigurationError
from outbox.protocol.record import Record

log = logging.getLogger("outbox")

_POLL_SECONDS = 0.5
_RESTART_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
_OURS = {
    "enable.auto.commit": True,
    "enable.auto.offset.store": False,  # an offset counts once its transaction is committed
    "isolation.level": "read_committed",
}
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED}


@contextmanager
def asked_by_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGTERM or SIGINT came inside the block."""
    received: list[int] = []
    asked = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda one, _frame: received.append(one)) for number in asked}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# A message is tried (its transaction is open), waits after a failure (the partitions are paused, and the consumer is
# polled all the same, so that it stays in its group), or is done: its transaction is committed, or it is a dead letter.
# Only then its offset is stored (R88). It is left, as if it had never come, if its partition is lost while it waits, or
# the loop is asked to stop: who has the partition next takes it again.
@dataclass
class ConsumerLoop:
    """Takes messages until it is asked to stop.

    Args:
        handle: Does all that a message needs, in one transaction.
        kafka: Properties of librdkafka.
        dead_letters: Topic of the messages that could not be handled; None: their error ends the loop.
    """

    group: str
    handle: Callable[[Message], None]
    kafka: Mapping[str, Any]
    topics: Sequence[str]
    dead_letters: str | None
    attempts: int
    first_pause: float
    is_asked_to_stop: Callable[[], bool]
    _early: deque[Message] = field(default_factory=deque)  # came while another one waited
    _has_failed: bool = False

    def __post_init__(self) -> None:
        """Refuse properties that the loop sets itself."""
        if clash := {"group.id", *_OURS} & self.kafka.keys():
            raise ConfigurationError(f"run() sets {', '.join(sorted(clash))} itself. Remove it from the properties.")

    def run(self) -> None:
        """Consume; a consumer that has failed for good is replaced by another one."""
        while not self.is_asked_to_stop():
            self._early.clear()
            self._has_failed = False
            with self._consumer() as consumer:
                with suppress(KafkaException):  # Kafka is away: the topic is looked for again when it is needed
                    self._find_dead_letters(consumer)
                while not self.is_asked_to_stop() and not self._has_failed:
                    self._take_one(consumer)
            if self._has_failed:
                time.sleep(_RESTART_SECONDS)

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer({"auto.offset.reset": "earliest", **logged(self.kafka), **_OURS, "group.id": self.group})
        try:
            consumer.subscribe(list(self.topics))
            yield consumer
        finally:
            # It commits the stored offsets, and repeats that without limit while Kafka is frozen.
            closing = threading.Thread(target=consumer.close, daemon=True)
            closing.start()
            closing.join(_CLOSE_SECONDS)

    def _take_one(self, consumer: Consumer) -> None:
        message = self._early.popleft() if self._early else self._polled(consumer, _POLL_SECONDS)
        if message is None:
            return
        if self._is_done(consumer, message):
            with suppress(KafkaException):  # its partition was lost: the message comes again, and is not new
                consumer.store_offsets(message)
        else:  # those behind it come again, too; to store the offset of one of them first would pass this one by
            self._early = deque(one for one in self._early if _partition(one) != _partition(message))

    def _polled(self, consumer: Consumer, seconds: float) -> Message | None:
        message = consumer.poll(seconds)
        if message is None or (error := message.error()) is None:
            return message
        log.warning("Consumer group %s: %s", self.group, error.str())
        self._has_failed = error.fatal()  # of all others the client recovers by itself
        return None

    def _is_done(self, consumer: Consumer, message: Message) -> bool:
        """Handle a message, as often as need be; return False if it was left."""
        place = message.topic() or "", message.partition() or 0, message.offset() or 0
        trial = Trial(place, self.attempts, self.first_pause, self.dead_letters)
        while True:
            try:
                if trial.is_over:
                    self._bury(consumer, message, trial)
                else:
                    self.handle(message)
            except Exception as error:  # noqa: BLE001 - the handler is the application's
                pause = trial.failed(error)
            else:
                return True
            if not self._is_still_ours(consumer, place, pause):
                return False

    def _find_dead_letters(self, consumer: Consumer) -> None:
        """End the loop if their topic does not exist."""
        if topic := self.dead_letters:
            error = consumer.list_topics(topic, DEAD_LETTER_SECONDS).topics[topic].error
            if error is not None and error.code() in _NO_TOPIC:
                raise no_such_topic(topic)

    def _bury(self, consumer: Consumer, message: Message, trial: Trial) -> None:
        """Write a message to the topic of dead letters, with the reason."""
        topic = self.dead_letters or ""
        self._find_dead_letters(consumer)
        kafka = {"message.max.bytes": DEAD_LETTER_BYTES, **self.kafka}
        letter = trial.letter(self.group, message.key(), message.value(), headers_of(message))
        write_all(kafka, topic, [Record(topic, -1, *letter)], DEAD_LETTER_SECONDS)
        trial.log_written()

    def _is_still_ours(self, consumer: Consumer, place: Place, seconds: float) -> bool:
        """Wait as a member of the group; return whether the partition was ours all the time."""
        ends = time.monotonic() + seconds
        try:
            while (left := ends - time.monotonic()) > 0:
                ours = consumer.assignment()
                is_ours = place[:2] in {(one.topic, one.partition) for one in ours}
                if self.is_asked_to_stop() or self._has_failed or not is_ours:
                    return False
                consumer.pause(ours)
                if (early := self._polled(consumer, min(left, _POLL_SECONDS))) is not None:
                    self._early.append(early)
        finally:
            consumer.resume(consumer.assignment())
        return True


def _partition(message: Message) -> tuple[str | None, int | None]:
    return message.topic(), message.partition()
