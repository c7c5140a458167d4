"""An operator's decisions on their way into the verdict topic."""

from collections.abc import Iterable, Mapping

from confluent_kafka import Producer

from outbox._kafka.admin import REQUEST_TIMEOUT, checked_properties
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.client_log import logged
from outbox._kafka.produce import Refusals, produce
from outbox.errors import ConfigurationError
from outbox.protocol.discard import Manifest
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.record import Record


def send_decisions(kafka: Mapping[str, str], channel: ChannelDescription, entries: Iterable[OpEntry]) -> None:
    """Write an operator's decisions into the verdict topic, one record each; their reasons name role and cause."""
    refusals = Refusals()
    with checked_properties():
        producer = Producer({**logged(kafka), "acks": "all", "enable.idempotence": True, **refusals.properties()})
    with refusals.raised(channel.verdict.name):
        for entry in entries:
            value, headers = encode_op([entry], OpSource.OPERATOR)
            produce(producer, Record(channel.verdict.name, entry.partition, None, value, headers))
            producer.poll(0)
        left = producer.flush(REQUEST_TIMEOUT)
    if left:
        raise ConfigurationError(f"Kafka did not take {left} decisions within {REQUEST_TIMEOUT:.0f} s: give them again")


def entry_of(manifest: Manifest, kind: OpKind, reason: str) -> OpEntry:
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
