"""What an operator may decide on a transaction, as one table. Pure.

The row is the decision (R1). An operator's word becomes the row first, and only then an op marker; where a row, an open
local transaction or a listener contradicts it, it is refused (R32).
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from checker.operator.unsettled_transactions import UnsettledTransaction
from checker.rules.verdicts import Row
from outbox.protocol.half import Truth
from outbox.protocol.op import OpKind


class SourceState(enum.StrEnum):
    """State of a transaction at its source of truth: callback row or listener."""

    NO_ROW = "no row"  # of a transaction that is not open
    OPEN = "open"  # its local transaction holds its lock
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"  # it has a rollback row
    ELSEWHERE = "elsewhere"  # a committed row of another half topic
    DAMAGED = "damaged"  # a committed row that cannot be read
    PURGED = "purged"  # below the purge watermark: its row may have been there
    MISMATCH = "mismatch"  # its halves name another incarnation of the database
    UNMAPPED = "unmapped"  # no database is configured for its group
    LISTENER = "listener"  # only its listener can decide, and has not answered
    LISTENER_COMMITTED = "listener committed"
    LISTENER_ROLLED_BACK = "listener rolled back"


class DecisionStep(enum.Enum):
    """What a decision takes."""

    PLACE = "place the row, then send the op marker"
    MARK = "send the op marker"
    REFUSE = "refuse"


class Ruling(NamedTuple):
    """What follows."""

    step: DecisionStep
    why: str


_OPEN = Ruling(
    DecisionStep.REFUSE,
    "its local transaction is open and decides by itself: wait for it, or end its backend (pg_terminate_backend), then "
    "try again",
)
_PURGED = Ruling(
    DecisionStep.REFUSE,
    "its last half is below the purge watermark: its row may have existed, and was purged after it had its "
    "effect; look with `outbox trace`. Once it is parked in the discard topic it can be decided",
)
_MISMATCH = Ruling(
    DecisionStep.REFUSE,
    "its halves name another incarnation of the database than the one that is configured for its group: correct the "
    "mapping; if that incarnation is gone for good (restored from a backup), give it with --incarnation, and the "
    "database of today is the truth",
)
_UNMAPPED = Ruling(
    DecisionStep.REFUSE,
    "no database is configured for its producer group: only there can it be decided; name it in the "
    "checker's databases",
)
_ELSEWHERE = Ruling(
    DecisionStep.REFUSE,
    "its committed row names another half topic: this topic is a copy, or was recreated; what was delivered cannot be "
    "seen from here",
)
_DAMAGED = Ruling(
    DecisionStep.REFUSE,
    "its committed row cannot be read (positions or offsets are damaged): correct the row in the callback table; until "
    "then it is not delivered",
)
_AGAIN = "the row is already decided this way: the op marker is sent again"
_NO_ROW = "the local transaction is not open and has no row: your decision becomes the row"
_LISTENER = "only its listener can answer, and is not asked: the op marker alone is the decision"

RULINGS: dict[tuple[OpKind, SourceState], Ruling] = {
    (OpKind.COMMIT, SourceState.NO_ROW): Ruling(DecisionStep.PLACE, _NO_ROW),
    (OpKind.COMMIT, SourceState.OPEN): _OPEN,
    (OpKind.COMMIT, SourceState.COMMITTED): Ruling(DecisionStep.MARK, _AGAIN),
    (OpKind.COMMIT, SourceState.ROLLED_BACK): Ruling(
        DecisionStep.REFUSE,
        "it has a rollback row: it was decided ROLLBACK, and its application got the error; publish its messages again",
    ),
    (OpKind.COMMIT, SourceState.ELSEWHERE): _ELSEWHERE,
    (OpKind.COMMIT, SourceState.DAMAGED): _DAMAGED,
    (OpKind.COMMIT, SourceState.PURGED): _PURGED,
    (OpKind.COMMIT, SourceState.MISMATCH): _MISMATCH,
    (OpKind.COMMIT, SourceState.UNMAPPED): _UNMAPPED,
    (OpKind.COMMIT, SourceState.LISTENER): Ruling(DecisionStep.MARK, _LISTENER),
    (OpKind.COMMIT, SourceState.LISTENER_COMMITTED): Ruling(DecisionStep.MARK, "its listener answered the same"),
    (OpKind.COMMIT, SourceState.LISTENER_ROLLED_BACK): Ruling(
        DecisionStep.REFUSE, "its listener answered ROLLBACK, and no answer differs; publish its messages again"
    ),
    (OpKind.ROLLBACK, SourceState.NO_ROW): Ruling(DecisionStep.PLACE, _NO_ROW),
    (OpKind.ROLLBACK, SourceState.OPEN): _OPEN,
    (OpKind.ROLLBACK, SourceState.COMMITTED): Ruling(
        DecisionStep.REFUSE, "it has committed: it has a row; it is delivered once a relay reads an op marker or asks"
    ),
    (OpKind.ROLLBACK, SourceState.ROLLED_BACK): Ruling(DecisionStep.MARK, _AGAIN),
    (OpKind.ROLLBACK, SourceState.ELSEWHERE): _ELSEWHERE,
    (OpKind.ROLLBACK, SourceState.DAMAGED): _DAMAGED,
    (OpKind.ROLLBACK, SourceState.PURGED): _PURGED,
    (OpKind.ROLLBACK, SourceState.MISMATCH): _MISMATCH,
    (OpKind.ROLLBACK, SourceState.UNMAPPED): _UNMAPPED,
    (OpKind.ROLLBACK, SourceState.LISTENER): Ruling(DecisionStep.MARK, _LISTENER),
    (OpKind.ROLLBACK, SourceState.LISTENER_COMMITTED): Ruling(
        DecisionStep.REFUSE, "its listener answered COMMIT, and no answer differs: it is about to be delivered"
    ),
    (OpKind.ROLLBACK, SourceState.LISTENER_ROLLED_BACK): Ruling(DecisionStep.MARK, "its listener answered the same"),
}
"""Every case there is."""


def of_listener(found: UnsettledTransaction) -> SourceState | None:
    """Return the state of a transaction without a row; None: it has, or will have, one."""
    if found.truth is not Truth.LISTENER:
        return None
    if found.decision is None or found.disputed:
        return SourceState.LISTENER
    committed = found.decision.kind is OpKind.COMMIT
    return SourceState.LISTENER_COMMITTED if committed else SourceState.LISTENER_ROLLED_BACK


def of_row(row: Row, topic_id: str) -> SourceState:
    """Return the state of a transaction with a row."""
    if not row.committed:
        return SourceState.ROLLED_BACK
    if row.damage:
        return SourceState.DAMAGED
    return SourceState.COMMITTED if row.topic_id == topic_id else SourceState.ELSEWHERE
