"""An operator's decisions on their way into the op topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from outbox._kafka.admin import REQUEST_TIMEOUT, checked_properties, refused
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.client_log import logged
from outbox.errors import ConfigurationError
from outbox.protocol.op import OpEntry, OpSource, encode_op


def send_decisions(kafka: Mapping[str, str], channel: ChannelDescription, entries: Iterable[OpEntry]) -> None:
    """Write an operator's decisions into the op topic, one record each.

    Args:
        kafka: librdkafka properties, with the right to write to the op topic.
        channel: The channel.
        entries: The decisions; their reasons name the role and the cause.

    Raises:
        ConfigurationError: Kafka does not take them.
    """
    failed: list[KafkaError] = []

    def report(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    with checked_properties():
        producer = Producer({**logged(kafka), "acks": "all", "enable.idempotence": True, "on_delivery": report})
    for entry in entries:
        value, headers = encode_op([entry], OpSource.OPERATOR)
        while True:
            try:
                producer.produce(channel.op.name, value, None, entry.partition, None, None, 0, headers)
                break
            except BufferError:  # very many: wait until some are acknowledged, or have failed
                producer.poll(1.0)
        producer.poll(0)
    left = producer.flush(REQUEST_TIMEOUT)
    if failed:
        raise refused(f"writing to {channel.op.name}", KafkaException(failed[0]))
    if left:
        raise ConfigurationError(f"Kafka did not take {left} decisions within {REQUEST_TIMEOUT:.0f} s: give them again")
