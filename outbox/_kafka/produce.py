"""Hands records to librdkafka, however many there are."""

from __future__ import annotations

from confluent_kafka import Producer

from outbox.protocol.record import Record

_ROOM_SECONDS = 0.1


def produce(producer: Producer, record: Record) -> None:
    """Hand a record over; while the local queue is full, wait until librdkafka has sent some of it.

    Raises:
        KafkaException: The producer refuses it.
    """
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
