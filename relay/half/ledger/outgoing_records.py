"""What a Kafka transaction of the relay writes: real records and discard records. Pure."""

import uuid
from collections.abc import Iterable, Iterator

from outbox.protocol.discard import DiscardReason, Manifest, manifest_key, message_key
from outbox.protocol.half import HalfControl, Truth, count_header, real_headers
from outbox.protocol.names import LATE_HEADER
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from relay.half.state.discard_index import ParkedHalves, record_keys
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Transaction


def deliver(transaction: Transaction, partition: int) -> list[Record]:
    """Return the records of a committed transaction on their real topics, in the order of their positions.

    What comes from the discard topic is out of its order, and a header marks it.
    """
    counted = [(half, half.control) for half in transaction.counted() if half.control]
    records = [_real(half, control, partition, len(counted)) for half, control in counted]
    if transaction.discarded:
        for record in records:
            record.headers.append((LATE_HEADER, str(transaction.discarded.reason).encode()))
    return records


def _real(half: Half, control: HalfControl, partition: int, messages: int) -> Record:
    headers = [*real_headers(control, half.headers, partition, half.offset), count_header(messages)]
    return Record(control.topic, control.partition, half.key, half.value, headers, half.timestamp())


def discard(move: ParkedHalves, manifest: Manifest, topic: str) -> Iterator[Record]:
    """Yield the records of halves that go to the discard topic, then the manifest of their transaction."""
    keys = record_keys(move.transaction)
    for half in move.halves:
        yield Record(topic, manifest.partition, keys[half.offset], half.envelope().encode(), [], half.append_time)
    yield _manifest(manifest, topic)


def tombstones(keys: Iterable[bytes], transaction: Transaction, topic: str, partition: int) -> Iterator[Record]:
    """Yield the tombstones that remove records of a transaction from the discard topic."""
    for key in keys:
        yield Record(topic, partition, key, None, [], transaction.first().append_time)


def malformed(half: Half, topic_id: str, partition: int) -> Manifest:
    """Return the manifest of a half that cannot be parsed, under an id made from its place."""
    transaction_id = str(uuid.uuid5(uuid.UUID(topic_id), f"{partition}/{half.offset}"))
    return Manifest(
        transaction_id,
        "unknown",
        Truth.ROW,
        topic_id,
        partition,
        DiscardReason.MALFORMED,
        half.error,
        None,
        Positions.first(1),
        ((0, half.offset),),
        half.append_time,
    )


def discard_malformed(half: Half, manifest: Manifest, topic: str) -> Iterator[Record]:
    """Yield the records of a half that cannot be parsed."""
    key = message_key(manifest.transaction_id, 0)
    yield Record(topic, manifest.partition, key, half.envelope().encode(), [], half.append_time)
    yield _manifest(manifest, topic)


def _manifest(manifest: Manifest, topic: str) -> Record:
    key = manifest_key(manifest.transaction_id)
    return Record(topic, manifest.partition, key, manifest.encode(), [], manifest.first_append_time)
