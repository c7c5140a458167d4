"""The discard topic as an operator sees it: its content and why; DELIVER and ROLLBACK for it.

Only a relay changes its content. An operator's decision is an op marker like any other, on what he saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Message

from outbox._kafka.channel import ChannelDescription
from outbox._kafka.range_reader import Span, SpanReader
from outbox._operations.decisions import send_decisions
from outbox.protocol.discard import DiscardReason, Manifest, manifest_key, message_key, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import TARGET_HEADER
from outbox.protocol.op import OpEntry, OpKind

_MANIFEST = manifest_key("")
_OFFSET_BITS = 64


@dataclass(frozen=True, slots=True)
class DiscardedMessage:
    """A message that is there; nothing of its content.

    Args:
        target: Real topic and partition, -1 for one that its key chooses; empty if that cannot be read.
        size: Bytes of key and value.
    """

    target: str
    size: int
    has_key: bool


@dataclass(frozen=True, slots=True)
class Discarded:
    """One transaction that is there.

    Args:
        messages: Its messages by record key.
    """

    manifest: Manifest
    messages: Mapping[bytes, DiscardedMessage]

    def halves(self) -> Iterator[tuple[int, int, DiscardedMessage | None]]:
        """Return position, half offset and message of each half; None: it is not there."""
        for position, offset in self.manifest.offsets:
            yield position, offset, self.messages.get(message_key(self.manifest.transaction_id, position))


def read_manifests(
    kafka: Mapping[str, str],
    channel: ChannelDescription,
    cannot_read: Callable[[Message, ProtocolError], None] | None = None,
) -> Iterator[Manifest]:
    """Read the manifests in the discard topic, one at a time, up to its present end as far as it is committed.

    The topic is read twice: first for the place of the last record of each manifest's key, then for these records.
    Only the keys and places are kept in memory.

    Args:
        cannot_read: Called with a manifest's record that is of a newer format, or none; the others follow. Without
            it the first one ends the reading.
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


def read_discarded(kafka: Mapping[str, str], channel: ChannelDescription, transaction_id: str) -> Discarded | None:
    """Read one transaction from the discard topic; None if it is not there."""
    value: bytes | None = None
    messages: dict[bytes, DiscardedMessage] = {}
    prefix, last = f"{transaction_id}/".encode(), manifest_key(transaction_id)
    with SpanReader(kafka, channel.channel.relay_group) as reader:
        for message in reader.read(_spans(reader, channel)):
            key, content = message.key() or b"", message.value()
            if key == last:
                value = content
            elif key.startswith(prefix):
                messages.pop(key, None)
                if content is not None:
                    messages[key] = _message(content)
    manifest = None if value is None else parse_manifest(value)
    if manifest is None or manifest.topic_id != channel.half.id:
        return None
    return Discarded(manifest, messages)


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


def _message(value: bytes) -> DiscardedMessage:
    envelope = parse_envelope(value)
    target = (dict(envelope.headers).get(TARGET_HEADER) or b"").decode(errors="replace")
    return DiscardedMessage(target, len(envelope.key or b"") + len(envelope.value or b""), envelope.key is not None)


def why_not(manifest: Manifest, kind: OpKind) -> str:
    """Why an operator cannot decide so on a transaction; empty if he can."""
    if manifest.reason is DiscardReason.UNDECIDED:
        return "it is undecided: its callback table or its listener decides, and the checker goes on asking"
    if manifest.reason is DiscardReason.MALFORMED and kind is OpKind.DELIVER:
        return "it cannot be parsed, so it has no known target: it can only be dropped"
    return ""


def decide(
    kafka: Mapping[str, str], channel: ChannelDescription, manifests: Iterable[Manifest], kind: OpKind, reason: str
) -> None:
    """Send an operator's decision on what manifests list.

    Args:
        kind: DELIVER or ROLLBACK.
        reason: Who decided, and why.
    """
    send_decisions(kafka, channel, [entry_of(manifest, kind, reason) for manifest in manifests])


def entry_of(manifest: Manifest, kind: OpKind, reason: str) -> OpEntry:
    """Return a decision on what a manifest lists."""
    counted = set(manifest.positions)
    offsets = [offset for position, offset in manifest.offsets if position in counted]
    return OpEntry(
        kind,
        manifest.transaction_id,
        manifest.topic_id,
        manifest.partition,
        manifest.positions,
        min(offsets),
        max(offsets),
        reason=reason,
    )
