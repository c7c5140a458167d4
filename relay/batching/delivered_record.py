"""Records of a real topic that a relay wrote, read back: whose they are, and what they were made of. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from outbox.protocol.half import ANY_PARTITION
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER
from outbox.protocol.record import Record
from relay.state.half_records import Half

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


class WrittenRow(NamedTuple):
    """A record of a real topic that a table source wrote.

    Args:
        record: The record, as it could be written once more.
        id: Id of its row, of any form.
    """

    record: Record
    offset: int
    transaction_id: str
    id: str


def parse_delivered(record: Record, offset: int) -> Written | None:
    """Return a record of a real topic at an offset, if the relay wrote it for a half partition."""
    transaction_id, partition, half = _origin(record)
    if not (transaction_id and partition.isdigit() and half.isdigit()) or len(partition + half) > _DIGITS:
        return None
    return Written(record, offset, transaction_id, int(partition), int(half))


def parse_delivered_row(record: Record, offset: int, source: str) -> WrittenRow | None:
    """Return a record of a real topic at an offset, if the relay wrote it for a table source.

    Args:
        source: What its origin header has before the row's id.
    """
    transaction_id, origin, row = _origin(record)
    if not (transaction_id and row) or origin != source.encode():
        return None
    return WrittenRow(record, offset, transaction_id, row.decode(errors="replace"))


def _origin(record: Record) -> tuple[str, bytes, bytes]:
    """Return the transaction id, and both parts of the origin; empty if there are no such headers."""
    headers: dict[str, Any] = dict(record.headers)
    transaction_id: bytes = (headers.get(MESSAGE_ID_HEADER) or b"").rpartition(b"/")[0]
    origin, _, place = (headers.get(ORIGIN_HEADER) or b"").partition(b"/")
    return transaction_id.decode(errors="replace"), origin, place


def is_made_of(found: Written, half: Half) -> bool:
    """Whether a record is what was made of a half; services that forward headers make others like it elsewhere."""
    control, record = half.control, found.record
    if control is None or (control.transaction_id, control.topic) != (found.transaction_id, record.topic):
        return False
    return control.partition in {ANY_PARTITION, record.partition}
