"""Consumed records: their headers, and those that Kafka's client cannot unpack (R54)."""

from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, TopicPartition

from outbox.protocol.half import Header


def headers_of(message: Message) -> tuple[Header, ...]:
    """Return the headers of a consumed record, in their order; empty if it has none."""
    headers: Any = message.headers() or ()  # the stub also allows a dict and text, which consumed messages never have
    return tuple(headers)


_CODES = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})  # noqa: SLF001 - librdkafka's own codes carry an underscore


def is_unreadable(error: KafkaError) -> bool:
    """Return whether a batch is damaged, or unpacks to more than `receive.message.max.bytes`.

    librdkafka does not pass by such a batch. It reads the same offset again, about once in a second.
    """
    return error.code() in _CODES


def seek_to_end(consumer: Consumer, message: Message) -> None:
    """Go on at the log end of a partition of the check topic. The relay repeats the requests that are passed by."""
    consumer.seek(TopicPartition(message.topic() or "", message.partition() or 0, OFFSET_END))
