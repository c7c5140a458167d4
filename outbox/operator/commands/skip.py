"""`outbox skip`: pass by one record that halts its half partition."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer
from confluent_kafka import Message

from outbox._cli.setting_options import option, subcommand
from outbox._kafka.admin import admin_client
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._kafka.produce import write_all
from outbox._kafka.range_reader import SpanReader
from outbox._security.own_principal import recorded_name
from outbox.errors import ConfigurationError, UsageError
from outbox.operator.reading.channel_reader import to_half, to_ops
from outbox.operator.settings import DecisionSettings, Given
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.record import Record
from outbox.protocol.skip import Skip

MAX_REASON = 500  # characters of a reason


def refuse_readable(kafka: Mapping[str, str], channel: ChannelDescription, skip: Skip) -> None:
    topic = next(one for one in (channel.half, channel.op, channel.verdict) if one.id == skip.topic_id)
    place = f"{topic.name}/{skip.partition} offset {skip.offset}"
    with SpanReader(kafka, channel.channel.relay_group) as reader:
        whole = reader.whole(topic.name, skip.partition)
        if not whole.start <= skip.offset < whole.stop:
            raise UsageError(f"{place} does not exist: the partition has offsets {whole.start} to {whole.stop - 1}")
        try:
            found = list(reader.read([replace(whole, start=skip.offset, stop=skip.offset + 1)]))
        except ConfigurationError:  # Kafka's client cannot hand it out
            return
    if any(_is_readable(message, channel) for message in found):
        raise UsageError(f"{place} can be read, so that a relay does not halt there: nothing is skipped")


def _is_readable(message: Message, channel: ChannelDescription) -> bool:
    topic = message.topic()
    try:
        _ = to_half(message) if topic == channel.half.name else to_ops(message, verdict=topic == channel.verdict.name)
    except ProtocolError as error:  # a misplaced op is dropped by a relay
        return not isinstance(error, NewerFormatError)
    return True


@subcommand(DecisionSettings, "operator", "channel", "bootstrap_servers")
def app(
    place: Annotated[str, typer.Argument(help="The partition: half/3 or op/3.")],
    offset: Annotated[int, option("Offset of the record.", min=0)],
    reason: Annotated[str, option("Why; it is kept in the discard topic with your name.")],
    given: Given,
) -> None:
    """Skip one unreadable record of the half, op or verdict topic that halts its half partition.

    A half becomes MALFORMED in the discard topic. The decision of an op is asked for again.
    """
    if not 0 < len(reason.strip()) <= MAX_REASON:
        raise UsageError(f"--reason has {len(reason.strip())} characters: give 1 to {MAX_REASON}")
    settings = DecisionSettings(**given)
    kafka = settings.client_properties()
    description = verify_channel(admin_client(kafka), settings.channel_names())
    skip = Skip(*_place(place, description), offset, recorded_name(kafka, settings.operator), reason.strip())
    refuse_readable(kafka, description, skip)
    record = Record(description.discard.name, skip.partition, skip.key(), skip.encode(), [])
    write_all(kafka, record.topic, [record])
    typer.echo(f"{place} offset {offset} is skipped when a relay takes the partition over (30 s).")


def _place(text: str, channel: ChannelDescription) -> tuple[str, int]:
    name, _, number = text.partition("/")
    topics = {"half": channel.half.id, "op": channel.op.id, "verdict": channel.verdict.id}
    if name not in topics or not (number.isascii() and number.isdigit()) or int(number) >= channel.partitions:
        valid = f"Give half/N, op/N or verdict/N, N from 0 to {channel.partitions - 1}."
        raise UsageError(f"{text[:40]!r} is not a valid partition. {valid}")
    return topics[name], int(number)
