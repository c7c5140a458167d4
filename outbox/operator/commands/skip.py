"""`outbox skip`: pass by one record that halts its half partition."""

import time
from collections.abc import Mapping
from typing import Annotated

import typer
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from outbox._cli.setting_options import setting_options
from outbox._kafka.admin import REQUEST_TIMEOUT, admin_client, checked_properties, refused
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._kafka.client_log import logged
from outbox._kafka.consumed_records import headers_of
from outbox._kafka.produce import write_all
from outbox._security.own_principal import recorded_name
from outbox._service.output import PlainConsole
from outbox.errors import UsageError
from outbox.operator.settings import Given, SkipSettings
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import parse_half
from outbox.protocol.op import parse_op
from outbox.protocol.record import Record
from outbox.protocol.skip import Skip

LOOK_SECONDS = 10.0
"""Time that Kafka has to hand out a record; one that it cannot hand out may be skipped."""


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


MAX_REASON = 500
"""Characters of a reason."""

app = typer.Typer(context_settings={"allow_interspersed_args": True}, subcommand_metavar="")


@app.callback(invoke_without_command=True)
@setting_options(SkipSettings)
def skip(
    place: Annotated[str, typer.Argument(help="The partition: half/3 or op/3.")],
    offset: Annotated[int, typer.Option(min=0, help="Offset of the record.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the discard topic with your name.")],
    given: Given,
) -> None:
    """Skip one unreadable record of the half, op or verdict topic that halts its half partition.

    A half becomes MALFORMED in the discard topic. The decision of an op is asked for again.
    """
    if not 0 < len(reason.strip()) <= MAX_REASON:
        raise UsageError(f"--reason has {len(reason.strip())} characters: give 1 to {MAX_REASON}")
    settings = SkipSettings(**given)
    kafka = settings.client_properties()
    description = verify_channel(admin_client(kafka), settings.channel_names())
    topic_id, partition = _place(place, description)
    skip = Skip(topic_id, partition, offset, recorded_name(kafka, settings.operator), reason.strip())
    refuse_readable(kafka, description, skip)
    record = Record(description.discard.name, skip.partition, skip.key(), skip.encode(), [])
    write_all(kafka, record.topic, [record])
    PlainConsole().print(f"{place} offset {offset} is skipped when a relay takes the partition over (30 s).")


def _place(text: str, channel: ChannelDescription) -> tuple[str, int]:
    """Return topic id and partition."""
    name, _, number = text.partition("/")
    topics = {"half": channel.half.id, "op": channel.op.id, "verdict": channel.verdict.id}
    if name not in topics or not (number.isascii() and number.isdigit()) or int(number) >= channel.partitions:
        raise UsageError(
            f"{text[:40]!r} is not a valid partition. "
            f"Give half/N, op/N or verdict/N, N from 0 to {channel.partitions - 1}."
        )
    return topics[name], int(number)
