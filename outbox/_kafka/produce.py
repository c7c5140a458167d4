"""Hands records to librdkafka, however many there are, and collects what Kafka refuses."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox._kafka.admin import REQUEST_TIMEOUT, checked_properties, refused
from outbox._kafka.client_log import logged
from outbox.errors import ConfigurationError
from outbox.protocol.record import Record

_ROOM_SECONDS = 0.1
_MAY_NOT_WRITE = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,  # of an idempotent producer that may write to no topic at all
}


def produce(producer: Producer, record: Record) -> None:
    """Hand a record over; while the local queue is full, wait until librdkafka has sent some of it."""
    while True:
        try:
            producer.produce(
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
            producer.poll(_ROOM_SECONDS)
        else:
            return


def why_refused(error: KafkaError, topic: str) -> str:
    """Return why a record was refused: the right that is missing, if that is why."""
    if error.code() in _MAY_NOT_WRITE:
        return f"{error.name()}: this client lacks the right WRITE on topic {topic}"
    return f"{error.name()}: {error.str()}"


def write_all(
    kafka: Mapping[str, Any], topic: str, records: Iterable[Record], timeout: float = REQUEST_TIMEOUT
) -> None:
    """Write records to a topic, and wait until Kafka has them."""
    refusals = _Refusals()
    with checked_properties():
        producer = Producer({**logged(kafka), "acks": "all", "enable.idempotence": True, **refusals.properties()})
    with refusals.raised(topic):
        for record in records:
            produce(producer, record)
            producer.poll(0)
        until = time.monotonic() + timeout
        while (left := len(producer)) and time.monotonic() < until:
            producer.poll(_ROOM_SECONDS)  # flush() loses what a fatal error was
    if left:
        raise ConfigurationError(f"Kafka did not take {left} records within {timeout:.0f} s: give them again")


class _Refusals:
    """Collects why Kafka did not take the records of one idempotent producer."""

    def __init__(self) -> None:
        self._errors: list[KafkaError] = []

    def properties(self) -> dict[str, Any]:
        return {"on_delivery": self._report}

    @contextmanager
    def raised(self, topic: str) -> Iterator[None]:
        """Write records in the block, and wait for their acknowledgements."""
        try:
            yield
        except KafkaException as error:
            self._errors.append(error.args[0])
        except SystemError as error:  # a fatal error, and behind it the report on a record: the interpreter's own words
            if isinstance(error.__cause__, KafkaException):
                self._errors.append(error.__cause__.args[0])
            elif not self._errors:
                raise
        self._raise_any(topic)

    def _raise_any(self, topic: str) -> None:
        for error in self._errors:
            if error.code() in _MAY_NOT_WRITE:
                raise ConfigurationError(f"{why_refused(error, topic)}. Grant it.")
        if self._errors:
            raise refused(f"writing to {topic}", KafkaException(self._errors[0]))

    def _report(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._errors.append(error)
