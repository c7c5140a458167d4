"""The discard topic as an operator sees it: what lies there and why; DELIVER and ROLLBACK for it.

Only a relay changes what lies there. An operator's decision is an op marker like any other, on what he saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from outbox.channel import ChannelDescription
from outbox.decisions import send_decisions
from outbox.protocol.discard import DiscardReason, Manifest, message_key, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.names import TARGET_HEADER
from outbox.protocol.op import OpEntry, OpKind
from outbox.span_reader import read_to_the_end

_MANIFEST = b"/manifest"


@dataclass(frozen=True, slots=True)
class DiscardedMessage:
    """A message that lies there; nothing of its content.

    Args:
        target: Real topic and partition, -1 for one that its key chooses; empty if that cannot be read.
        size: Bytes of key and value.
        has_key: Whether it has a key.
    """

    target: str
    size: int
    has_key: bool


@dataclass(slots=True)
class DiscardTopic:
    """What lies in the discard topic of a channel.

    Args:
        manifests: By transaction id, in the order of their partitions and offsets.
        messages: By record key.
    """

    manifests: dict[str, Manifest] = field(default_factory=dict)
    messages: dict[bytes, DiscardedMessage] = field(default_factory=dict)

    def messages_of(self, manifest: Manifest) -> Iterator[tuple[int, int, DiscardedMessage | None]]:
        """Position, half offset and message of each half; None: it does not lie there."""
        for position, offset in manifest.offsets:
            yield position, offset, self.messages.get(message_key(manifest.transaction_id, position))


def read_discard_topic(kafka: Mapping[str, str], channel: ChannelDescription) -> DiscardTopic:
    """Read the discard topic to its present end, as far as it is committed.

    Raises:
        KafkaUnreachable: Kafka does not answer.
        ConfigurationError: It refuses.
        ProtocolError: A manifest is of a newer format, or none.
    """
    found = DiscardTopic()
    group, topic = channel.channel.relay_group, channel.channel.discard_topic
    for message in read_to_the_end(kafka, group, topic, channel.partitions):
        _note(found, message.key() or b"", message.value())
    of_another = [id_ for id_, manifest in found.manifests.items() if manifest.topic_id != channel.half.id]
    for id_ in of_another:  # of a half topic that was made again: no relay would touch it
        del found.manifests[id_]
    return found


def _note(found: DiscardTopic, key: bytes, value: bytes | None) -> None:
    if key.endswith(_MANIFEST):
        id_ = key.removesuffix(_MANIFEST).decode()
        found.manifests.pop(id_, None)
        if value is not None:
            found.manifests[id_] = parse_manifest(value)
    elif value is None:
        found.messages.pop(key, None)
    else:
        envelope = parse_envelope(value)
        target = (dict(envelope.headers).get(TARGET_HEADER) or b"").decode(errors="replace")
        size = len(envelope.key or b"") + len(envelope.value or b"")
        found.messages[key] = DiscardedMessage(target, size, envelope.key is not None)


def why_not(manifest: Manifest, kind: OpKind) -> str:
    """Why an operator cannot decide so on a transaction; empty if he can."""
    if manifest.reason is DiscardReason.UNDECIDED:
        return "it is undecided: only its callback table or its listener knows; the checker goes on asking"
    if manifest.reason is DiscardReason.MALFORMED and kind is OpKind.DELIVER:
        return "it cannot be parsed, so that nobody knows where to deliver it: it can only be dropped"
    return ""


def decide(
    kafka: Mapping[str, str], channel: ChannelDescription, manifests: Iterable[Manifest], kind: OpKind, reason: str
) -> None:
    """Send an operator's decision on what manifests list.

    Args:
        kafka: librdkafka properties, with the right to write to the op topic.
        channel: The channel.
        manifests: Each as it was seen.
        kind: DELIVER or ROLLBACK.
        reason: Who decided, and why.

    Raises:
        ConfigurationError: Kafka does not take it.
    """
    send_decisions(kafka, channel, [entry_of(manifest, kind, reason) for manifest in manifests])


def entry_of(manifest: Manifest, kind: OpKind, reason: str) -> OpEntry:
    """A decision on what a manifest lists."""
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
