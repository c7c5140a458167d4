"""What is in the discard topic, which only a relay changes."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from confluent_kafka import Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.range_reader import SpanReader
from outbox.protocol.discard import Manifest, is_manifest_key, parse_manifest
from outbox.protocol.errors import ProtocolError

_OFFSET_BITS = 64


def read_manifests(
    kafka: Mapping[str, str],
    channel: ChannelDescription,
    cannot_read: Callable[[Message, ProtocolError], None] | None = None,
    numbers: Iterable[int] | None = None,
) -> Iterator[Manifest]:
    """Read the manifests in the discard topic, one at a time, up to its present end as far as it is committed.

    The topic is read twice: first for the place of the last record of each manifest's key, then for these records.
    `cannot_read` is called with a manifest's record that is of a newer format, or none; without it that ends the
    reading. `numbers`: only of these partitions.
    """
    with SpanReader(kafka, channel.channel.relay_group) as reader:
        spans = [reader.whole(channel.discard.name, number) for number in numbers or channel.numbers()]
        last = _last_manifests(reader.read(spans))
        for message in reader.read(spans) if last else ():
            if last.get(message.key() or b"") == _place(message):
                try:
                    manifest = parse_manifest(message.value(), max(message.timestamp()[1], 0))
                except ProtocolError as error:
                    if cannot_read is None:
                        raise
                    cannot_read(message, error)
                    continue
                if manifest.topic_id == channel.half.id:  # no relay touches those of a deleted half topic
                    yield manifest


def _last_manifests(messages: Iterable[Message]) -> dict[bytes, int]:
    last: dict[bytes, int] = {}
    for message in messages:
        key = message.key() or b""
        if is_manifest_key(key):
            last[key] = _place(message)
            if message.value() is None:
                del last[key]
    return last


def _place(message: Message) -> int:
    """Return partition and offset as one number, which takes less memory than a tuple."""
    return (message.partition() or 0) << _OFFSET_BITS | (message.offset() or 0)
