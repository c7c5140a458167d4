"""Verdicts of the callback table on a transaction, and the op entries that follow. Pure."""

from __future__ import annotations

import enum
from dataclasses import replace

from outbox._rules.callback_row import Row, answer, decision_entry
from outbox.protocol.check import CheckRequest
from outbox.protocol.op import OpEntry, OpKind


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
        entry = answer(request, kind, request.positions, request.first_offset, request.last_offset)
        return replace(entry, checks=request.check, reason=NO_ROW)
    return None if kind is None else decision_entry(request, kind, row)
