"""Verdicts of the callback table on a transaction, and the op entries that follow. Pure."""

import enum

from outbox._rules.callback_row import Row, decision_entry
from outbox.protocol.check import CheckRequest
from outbox.protocol.identifiers import created_ms
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


CONSEQUENCES: dict[Verdict, OpKind | None] = {
    Verdict.COMMITTED: OpKind.COMMIT,
    Verdict.FENCED: OpKind.ROLLBACK,
    Verdict.IN_FLIGHT: None,  # the local transaction is open: asked again, never counted (R26)
    Verdict.UNREACHABLE: None,  # the database did not answer: asked again, never counted (R26)
    Verdict.MISMATCH: None,  # another or a restored database: never decides (R10), an operator must look
    Verdict.ELSEWHERE: None,  # its committed row names another half topic (R39), an operator must look
    Verdict.DAMAGED: None,  # its committed row cannot be read (R53), an operator must look
    Verdict.PURGED: None,  # its row may have been purged: never fenced (R11), an operator must look
    Verdict.UNMAPPED: None,  # no database is configured for the service: an operator must add it
    Verdict.WITHHELD: None,  # the circuit breaker is open: nothing is fenced until an operator has checked (R10)
}
"""The op marker that follows from a verdict; None: silence, the relay asks again."""

NEEDS_SOMEBODY = frozenset(
    {Verdict.MISMATCH, Verdict.ELSEWHERE, Verdict.DAMAGED, Verdict.PURGED, Verdict.UNMAPPED, Verdict.WITHHELD}
)


def of_row(row: Row, topic_id: str) -> Verdict:
    """Return the verdict of a row on a transaction whose halves are in a half topic.

    A committed row that names another half topic decides nothing here: that topic was recreated while the application
    ran, or this one is a copy (R39).
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
    topic, this topic may be a mirror or the other one's successor; an operator must decide.
    """
    kind = CONSEQUENCES[verdict]
    return None if kind is None else decision_entry(request, kind, row)


FORGET_MS = 1_200_000
"""A transaction without a check for this time was decided elsewhere; the relay's longest pause is half of it."""

MOST = 10_000
"""Transactions that are remembered."""


class Undecided:
    """What is asked about again and again in one database."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}

    def note(self, answers: Answers, now: int) -> None:
        """Take the answers of a batch, at a time in ms since 1970."""
        for id_, (verdict, _) in answers.items():
            self._asked.pop(id_, None)
            if CONSEQUENCES[verdict] is None and len(self._asked) < MOST:
                self._asked[id_] = now
        self._asked = {id_: asked for id_, asked in self._asked.items() if asked > now - FORGET_MS}

    def oldest_seconds(self, now: int) -> float:
        """Age of the oldest one, in seconds; 0: there is none."""
        return max(0.0, (now - min(map(created_ms, self._asked), default=now)) / 1_000)
