"""Records that Kafka's client cannot unpack. In the check topic they are passed by: the relay asks again (R54)."""

from __future__ import annotations

from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, TopicPartition

_CODES = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})  # noqa: SLF001 - librdkafka's own codes carry an underscore


def is_unreadable(error: KafkaError) -> bool:
    """Return whether a batch is damaged, or unpacks to more than `receive.message.max.bytes`.

    librdkafka does not pass by such a batch. It reads the same offset again, about once in a second.
    """
    return error.code() in _CODES


def seek_to_end(consumer: Consumer, message: Message) -> None:
    """Go on at the log end of a partition of the check topic. The relay repeats the requests that are passed by.

    Args:
        message: The error of that partition.
    """
    consumer.seek(TopicPartition(message.topic() or "", message.partition() or 0, OFFSET_END))
