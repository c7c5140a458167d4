"""Records of a real topic that a relay wrote, read back: whose they are, and what they were made of. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from confluent_kafka import Message

from outbox.protocol.half import ANY_PARTITION
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER
from relay.half import Half
from relay.outgoing import Record

_DIGITS = 30
"""More than any partition and offset have together."""


class Written(NamedTuple):
    """A record of a real topic that a relay wrote.

    Args:
        message: The record.
        transaction_id: Its transaction.
        half_partition: Partition of its half; the half may be of another channel.
        half_offset: Offset of its half.
    """

    message: Message
    transaction_id: str
    half_partition: int
    half_offset: int


def written(message: Message) -> Written | None:
    """A record of a real topic, if a relay wrote it."""
    headers: dict[str, Any] = dict(message.headers() or ())
    transaction_id = (headers.get(MESSAGE_ID_HEADER) or b"").rpartition(b"/")[0]
    partition, _, offset = (headers.get(ORIGIN_HEADER) or b"").partition(b"/")
    if not (transaction_id and partition.isdigit() and offset.isdigit()) or len(partition + offset) > _DIGITS:
        return None
    return Written(message, transaction_id.decode(errors="replace"), int(partition), int(offset))


def is_made_of(record: Written, half: Half) -> bool:
    """Whether a record is what was made of a half; services that forward headers make others like it elsewhere."""
    control, message = half.control, record.message
    if control is None or (control.transaction_id, control.topic) != (record.transaction_id, message.topic()):
        return False
    return control.partition in {ANY_PARTITION, message.partition()}


def as_record(message: Message) -> Record:
    """The record once more, which its topic took before."""
    headers: Any = message.headers() or []
    topic, partition = message.topic() or "", message.partition()
    return Record(
        topic, -1 if partition is None else partition, message.key(), message.value(), headers, message.timestamp()[1]
    )
