"""Verdicts of the callback table on a transaction, and the op entries that follow. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from outbox.protocol.check import CheckRequest
from outbox.protocol.errors import ProtocolError
from outbox.protocol.op import NO_OFFSET, OpEntry, OpKind, fit
from outbox.protocol.positions import Positions


class Verdict(enum.StrEnum):
    """What a check found out."""

    COMMITTED = "COMMITTED"
    FENCED = "FENCED"
    IN_FLIGHT = "IN_FLIGHT"
    UNREACHABLE = "UNREACHABLE"
    MISMATCH = "MISMATCH"
    ELSEWHERE = "ELSEWHERE"
    DAMAGED = "DAMAGED"
    PURGED = "PURGED"
    UNMAPPED = "UNMAPPED"
    WITHHELD = "WITHHELD"
    UNKNOWN = "UNKNOWN"


CONSEQUENCES: dict[Verdict, OpKind | None] = {
    Verdict.COMMITTED: OpKind.COMMIT,
    Verdict.FENCED: OpKind.ROLLBACK,
    Verdict.IN_FLIGHT: None,  # the local transaction is open: asked again, never counted (R26)
    Verdict.UNREACHABLE: None,  # the database did not answer: asked again, never counted (R26)
    Verdict.MISMATCH: None,  # another or a restored database: never decides (R10), an operator must look
    Verdict.ELSEWHERE: None,  # its committed row names another half topic (R39), an operator must look
    Verdict.DAMAGED: None,  # its committed row cannot be read (R53), an operator must look
    Verdict.PURGED: None,  # its row may have been purged: never fenced (R11), an operator must look
    Verdict.UNMAPPED: None,  # no database is configured for the group: an operator must add it
    Verdict.WITHHELD: None,  # the circuit breaker is open: nothing is fenced until an operator has checked (R10)
    Verdict.UNKNOWN: OpKind.UNKNOWN,  # no row, where the checker may not write: counted as a listener's answer (R26)
}
"""The op marker that follows from a verdict; None: silence, the relay asks again."""

NEEDS_SOMEBODY = frozenset(
    {Verdict.MISMATCH, Verdict.ELSEWHERE, Verdict.DAMAGED, Verdict.PURGED, Verdict.UNMAPPED, Verdict.WITHHELD}
)

NO_ROW = "no row, and the checker may not write to this database"
"""Reason of an answer UNKNOWN."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the callback table.

    Args:
        committed: True for the application's row (C), False for the checker's rollback row (R).
        damage: Why the row cannot be read; empty if it can.
    """

    committed: bool
    topic_id: str
    partition: int
    first_offset: int
    last_offset: int
    positions: Positions
    damage: str = ""


def read_row(state: str, topic_id: str, partition: int, first_offset: int, last_offset: int, positions: str) -> Row:
    """Return a row of the callback table; what an application wrote there may be anything (R53).

    Args:
        state: `C` or `R`.
        positions: Which messages count, as text.
    """
    try:
        found, damage = Positions.parse(positions), ""
    except ProtocolError as error:
        found, damage = Positions(()), str(error)
    if not damage and not fit(found, first_offset, last_offset):
        damage = f"positions {str(found)[:40]!r} do not fit the offsets {first_offset} to {last_offset}"
    return Row(state == "C", topic_id, partition, first_offset, last_offset, found, damage)


def of_row(row: Row, topic_id: str) -> Verdict:
    """Return the verdict of a row on a transaction whose halves are in a half topic.

    A committed row that names another half topic decides nothing here: that topic was recreated while the application
    ran, or this one is a copy (R39).

    Args:
        topic_id: Id of the half topic that asks.
    """
    if not row.committed:
        return Verdict.FENCED
    if row.damage:
        return Verdict.DAMAGED
    return Verdict.COMMITTED if row.topic_id == topic_id else Verdict.ELSEWHERE


Answers = dict[str, tuple[Verdict, Row | None]]
"""Verdicts by transaction id, with the row if there is one."""


def op_entry(request: CheckRequest, verdict: Verdict, row: Row | None) -> OpEntry | None:
    """Return the op entry that answers a request, or None for silence, which is always safe.

    A commit repeats the row; a rollback lists what the relay has read. It goes to the partition that asked: if
    the row names another one, the halves in this one are a copy, and none of them counts. If the row names another
    topic, this topic may be a mirror or the other one's successor; an operator must decide. An answer UNKNOWN carries
    the number of the check back, so that it counts once.
    """
    kind = CONSEQUENCES[verdict]
    if kind is OpKind.UNKNOWN:
        entry = _answer(request, kind, request.positions, request.first_offset, request.last_offset)
        return replace(entry, checks=request.check, reason=NO_ROW)
    if kind is OpKind.ROLLBACK:
        return _answer(request, kind, request.positions, request.first_offset, request.last_offset)
    if kind is None or row is None or not row.committed or row.topic_id != request.topic_id:
        return None
    if row.partition != request.partition:
        return _answer(request, kind, Positions(()), NO_OFFSET, NO_OFFSET)
    return _answer(request, kind, row.positions, row.first_offset, row.last_offset)


def _answer(request: CheckRequest, kind: OpKind, positions: Positions, first: int, last: int) -> OpEntry:
    return OpEntry(kind, request.transaction_id, request.topic_id, request.partition, positions, first, last)
