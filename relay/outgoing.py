"""What a Kafka transaction of the relay writes: real records and discard records. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from outbox.protocol.discard import DiscardReason, Manifest, manifest_key, message_key
from outbox.protocol.half import HalfControl, OutgoingHeaders, Truth, real_headers
from outbox.protocol.positions import Positions
from relay.half import Half
from relay.preflight import Finding
from relay.transaction import Transaction


class Record(NamedTuple):
    """A record to be produced; partition -1 lets the key choose, timestamp in ms."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: OutgoingHeaders
    timestamp: int


def deliver(transaction: Transaction, partition: int) -> Iterator[Record]:
    """The records of a committed transaction on their real topics, in the order of their positions.

    Args:
        transaction: A committed transaction that passed pre-flight.
        partition: Its half partition, for the origin header.
    """
    for half in transaction.counted():
        if half.control is not None:
            yield _real(half, half.control, partition)


def _real(half: Half, control: HalfControl, partition: int) -> Record:
    headers = real_headers(control, half.headers, partition, half.offset)
    return Record(control.topic, control.partition, half.key, half.value, headers, half.timestamp())


def discard(transaction: Transaction, finding: Finding, topic: str, topic_id: str, partition: int) -> Iterator[Record]:
    """The records of a transaction in the discard topic: its messages, then the manifest.

    Args:
        transaction: A transaction that leaves the flow.
        finding: Why.
        topic: The discard topic.
        topic_id: Id of the half topic.
        partition: Its half partition, which is the discard partition's number too.
    """
    for position, half in sorted(transaction.halves.items()):
        key = message_key(transaction.id, position)
        yield Record(topic, partition, key, half.envelope().encode(), [], half.append_time)
    manifest = _manifest(transaction, finding, topic_id, partition)
    yield Record(topic, partition, manifest_key(transaction.id), manifest.encode(), [], manifest.first_append_time)


def discard_malformed(half: Half, topic: str, topic_id: str, partition: int) -> Iterator[Record]:
    """The records of a half that cannot be parsed, under an id made from its place."""
    transaction_id = str(uuid.uuid5(uuid.UUID(topic_id), f"{partition}/{half.offset}"))
    manifest = Manifest(
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
    key = message_key(transaction_id, 0)
    yield Record(topic, partition, key, half.envelope().encode(), [], half.append_time)
    yield Record(topic, partition, manifest_key(transaction_id), manifest.encode(), [], half.append_time)


def _manifest(transaction: Transaction, finding: Finding, topic_id: str, partition: int) -> Manifest:
    decision = transaction.decision
    return Manifest(
        transaction.id,
        transaction.group,
        transaction.truth,
        topic_id,
        partition,
        finding.reason,
        finding.detail,
        decision.kind if decision else None,
        decision.positions if decision else Positions.of(transaction.halves),
        tuple((position, half.offset) for position, half in sorted(transaction.halves.items())),
        min(half.append_time for half in transaction.halves.values()),
        transaction.unknown_answers,
        transaction.last_answer,
        quote_from_bytes(transaction.lane[1], safe="") if transaction.lane else None,
        transaction.incarnation,
    )
