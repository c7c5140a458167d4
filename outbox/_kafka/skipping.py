"""An operator's word that a relay passes by a record that cannot be read."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from outbox._kafka.admin import REQUEST_TIMEOUT, checked_properties, refused
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.client_log import logged
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.produce import Refusals
from outbox.errors import ConfigurationError, UsageError
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import parse_half
from outbox.protocol.op import parse_op
from outbox.protocol.skip import Skip

LOOK_SECONDS = 10.0
"""Time that Kafka has to hand out a record; one that it cannot hand out may be skipped."""


def send_skip(kafka: Mapping[str, str], channel: ChannelDescription, skip: Skip) -> None:
    """Write a skip into the discard topic."""
    refusals = Refusals()
    topic = channel.discard.name
    with checked_properties():
        producer = Producer({**logged(kafka), "acks": "all", "enable.idempotence": True, **refusals.properties()})
    with refusals.raised(topic):
        producer.produce(topic, skip.encode(), skip.key(), skip.partition)
        left = producer.flush(REQUEST_TIMEOUT)
    if left:
        raise ConfigurationError(f"Kafka did not take the skip within {REQUEST_TIMEOUT:.0f} s: give it again")


def refuse_readable(kafka: Mapping[str, str], channel: ChannelDescription, skip: Skip) -> None:
    """Refuse to skip a record that this process can read, or that is not there."""
    topics = (channel.half, channel.op, channel.verdict)
    topic = next(one for one in topics if one.id == skip.topic_id)
    place = f"{topic.name}/{skip.partition} offset {skip.offset}"
    group = {"group.id": channel.channel.relay_group, "enable.auto.commit": False, "auto.offset.reset": "error"}
    with checked_properties():
        consumer = Consumer({**logged(kafka), **group})
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic.name, skip.partition), REQUEST_TIMEOUT)
        if not start <= skip.offset < end:
            raise UsageError(f"{place} does not exist: the partition has offsets {start} to {end - 1}")
        message = _read(consumer, TopicPartition(topic.name, skip.partition, skip.offset))
    except KafkaException as error:
        raise refused(f"reading {topic.name}", error) from error
    finally:
        consumer.close()
    if message is not None and _is_readable(message, channel):
        raise UsageError(f"{place} can be read, so that a relay does not halt there: nothing is skipped")


def _read(consumer: Consumer, place: TopicPartition) -> Message | None:
    """Return the record at an offset; None if Kafka's client cannot hand it out."""
    consumer.assign([place])
    deadline = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            return message if message.offset() == place.offset else None
    return None


def _is_readable(message: Message, channel: ChannelDescription) -> bool:
    headers, topic = headers_of(message), message.topic()
    try:
        if topic == channel.half.name:
            parse_half(headers)
        else:
            parse_op(message.value(), headers, verdict=topic == channel.verdict.name)
    except NewerFormatError:
        return False
    except ProtocolError:
        return True  # a relay discards it by itself
    return True
