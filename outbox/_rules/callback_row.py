"""A row of the callback table, and the op entry that it makes. Pure."""

from dataclasses import dataclass

from outbox.protocol.check import CheckRequest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.op import NO_OFFSET, OpEntry, OpKind, fit
from outbox.protocol.positions import Positions


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the callback table: committed (C) or a rollback row; `damage` is why it cannot be read."""

    committed: bool
    topic_id: str
    partition: int
    first_offset: int
    last_offset: int
    positions: Positions
    damage: str = ""


def read_row(state: str, topic_id: str, partition: int, first_offset: int, last_offset: int, positions: str) -> Row:
    """Return a row of the callback table; what an application wrote there may be anything (R53)."""
    try:
        found, damage = Positions.parse(positions), ""
    except ProtocolError as error:
        found, damage = Positions(()), str(error)
    if not damage and not fit(found, first_offset, last_offset):
        damage = f"positions {str(found)[:40]!r} do not fit the offsets {first_offset} to {last_offset}"
    return Row(state == "C", topic_id, partition, first_offset, last_offset, found, damage)


def decision_entry(request: CheckRequest, kind: OpKind, row: Row | None) -> OpEntry | None:
    """Return the op entry of COMMIT or ROLLBACK; None: the row does not allow it.

    A commit repeats the row; a rollback lists what the relay has read.
    """
    if kind is OpKind.ROLLBACK:
        return answer(request, kind, request.positions, request.first_offset, request.last_offset)
    if row is None or not row.committed or row.topic_id != request.topic_id:
        return None
    if row.partition != request.partition:
        return answer(request, kind, Positions(()), NO_OFFSET, NO_OFFSET)
    return answer(request, kind, row.positions, row.first_offset, row.last_offset)


def answer(request: CheckRequest, kind: OpKind, positions: Positions, first: int, last: int) -> OpEntry:
    return OpEntry(kind, request.transaction_id, request.topic_id, request.partition, positions, first, last)
