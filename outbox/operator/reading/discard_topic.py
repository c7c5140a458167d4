"""The discard topic as an operator sees it: its content and why. Only a relay changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from confluent_kafka import Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.range_reader import Span, SpanReader
from outbox.operator.state.discarded import DiscardedTransaction, HalfMessage
from outbox.protocol.discard import Manifest, manifest_key, message_key, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import TARGET_HEADER

_MANIFEST = manifest_key("")
_OFFSET_BITS = 64


def read_manifests(
    kafka: Mapping[str, str],
    channel: ChannelDescription,
    cannot_read: Callable[[Message, ProtocolError], None] | None = None,
) -> Iterator[Manifest]:
    """Read the manifests in the discard topic, one at a time, up to its present end as far as it is committed.

    The topic is read twice: first for the place of the last record of each manifest's key, then for these records.
    Only the keys and places are kept in memory. `cannot_read` is called with a manifest's record that is of a newer
    format, or none; the others follow. Without it the first one ends the reading.
    """
    with SpanReader(kafka, channel.channel.relay_group) as reader:
        spans = _spans(reader, channel)
        last = _last_manifests(reader.read(spans))
        for message in reader.read(spans) if last else ():
            if last.get(message.key() or b"") == _place(message):
                try:
                    manifest = parse_manifest(message.value())
                except ProtocolError as error:
                    if cannot_read is None:
                        raise
                    cannot_read(message, error)
                    continue
                if manifest.topic_id == channel.half.id:  # no relay touches those of a deleted half topic
                    yield manifest


def read_discarded(
    kafka: Mapping[str, str], channel: ChannelDescription, transaction_id: str
) -> tuple[DiscardedTransaction, list[HalfMessage]] | None:
    """Read one transaction from the discard topic, with its messages; None if it is not there."""
    value: bytes | None = None
    bodies: dict[bytes, bytes] = {}
    prefix, last = f"{transaction_id}/".encode(), manifest_key(transaction_id)
    with SpanReader(kafka, channel.channel.relay_group) as reader:
        for message in reader.read(_spans(reader, channel)):
            key, content = message.key() or b"", message.value()
            if key == last:
                value = content
            elif content is None:
                bodies.pop(key, None)
            elif key.startswith(prefix):
                bodies[key] = content
    manifest = None if value is None else parse_manifest(value)
    if manifest is None or manifest.topic_id != channel.half.id:
        return None
    return DiscardedTransaction.of(manifest), [
        _message(position, offset, bodies.get(message_key(transaction_id, position)))
        for position, offset in manifest.offsets
    ]


def _spans(reader: SpanReader, channel: ChannelDescription) -> list[Span]:
    topic = channel.channel.discard_topic
    return [reader.whole(topic, number) for number in range(channel.partitions)]


def _last_manifests(messages: Iterable[Message]) -> dict[bytes, int]:
    """Return the place of the last record of each manifest's key, without those that were removed."""
    last: dict[bytes, int] = {}
    for message in messages:
        key = message.key() or b""
        if key.endswith(_MANIFEST):
            if message.value() is None:
                last.pop(key, None)
            else:
                last[key] = _place(message)
    return last


def _place(message: Message) -> int:
    """Return partition and offset as one number, which takes less memory than a tuple."""
    return (message.partition() or 0) << _OFFSET_BITS | (message.offset() or 0)


def _message(position: int, offset: int, body: bytes | None) -> HalfMessage:
    if body is None:
        return HalfMessage(position, offset)
    envelope = parse_envelope(body)
    target = (dict(envelope.headers).get(TARGET_HEADER) or b"").decode(errors="replace")
    size = len(envelope.key or b"") + len(envelope.value or b"")
    return HalfMessage(position, offset, target, envelope.key is not None, size)
