"""Records of a real topic that the relay wrote for a half partition, read back. Pure."""

from __future__ import annotations

from typing import NamedTuple

from outbox.protocol.half import ANY_PARTITION
from outbox.protocol.record import Record
from relay.half.state.half_records import Half
from relay.recovery.author import origin_of

_DIGITS = 30
"""More than any partition and offset have together."""


class Written(NamedTuple):
    """A record of a real topic that the relay wrote for a half partition.

    Args:
        record: The record, as it could be written once more.
        half_partition: Partition of its half; the half may be of another channel.
    """

    record: Record
    offset: int
    transaction_id: str
    half_partition: int
    half_offset: int


def parse_delivered(record: Record, offset: int) -> Written | None:
    """Return a record of a real topic at an offset, if the relay wrote it for a half partition."""
    transaction_id, partition, half = origin_of(record)
    if not (transaction_id and partition.isdigit() and half.isdigit()) or len(partition + half) > _DIGITS:
        return None
    return Written(record, offset, transaction_id, int(partition), int(half))


def is_made_of(found: Written, half: Half) -> bool:
    """Whether a record is what was made of a half; services that forward headers make others like it elsewhere."""
    control, record = half.control, found.record
    if control is None or (control.transaction_id, control.topic) != (found.transaction_id, record.topic):
        return False
    return control.partition in {ANY_PARTITION, record.partition}
