"""What an operator may decide on a transaction, as one table. Pure.

The row is the decision (R1). An operator's word becomes the row first, and only then an op marker; where a row, an open
local transaction or a listener contradicts it, it is refused (R32).
"""

import enum
from typing import NamedTuple

from outbox._rules.callback_row import Row
from outbox.operator.state.unsettled_transactions import UnsettledTransaction
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
    UNMAPPED = "unmapped"  # no database is configured for its service
    LISTENER = "listener"  # only its listener can decide, and has not answered
    LISTENER_COMMITTED = "listener committed"
    LISTENER_ROLLED_BACK = "listener rolled back"


class DecisionStep(enum.Enum):
    """What a decision takes."""

    PLACE = "place the row, then send the op marker"
    MARK = "send the op marker"
    REFUSE = "refuse"


class Ruling(NamedTuple):
    """What follows, and why."""

    step: DecisionStep
    why: str


_AGAIN = "the row is already decided this way: the op marker is sent again"
_SAME = "its listener answered the same"

_REFUSED_EITHER_WAY = {
    SourceState.OPEN: "its local transaction is open and decides by itself: wait for it, or end its backend "
    "(pg_terminate_backend), then try again",
    SourceState.PURGED: "its last half is below the purge watermark: its row may have existed, and was purged after it "
    "had its effect; look with `outbox trace`. Once it is parked in the discard topic it can be decided",
    SourceState.MISMATCH: "its halves name another incarnation of the database than the one that is configured for its "
    "service: correct the mapping; if that incarnation is gone for good (restored from a backup), give it with "
    "--incarnation, and the database of today is the truth",
    SourceState.UNMAPPED: "no database is configured for its service: only there can it be decided; name it in "
    "the checker's databases",
    SourceState.ELSEWHERE: "its committed row names another half topic: this topic is a copy, or was recreated; what "
    "was delivered cannot be seen from here",
    SourceState.DAMAGED: "its committed row cannot be read (positions or offsets are damaged): correct the row in the "
    "callback table; until then it is not delivered",
}
_EITHER_WAY = {
    SourceState.NO_ROW: Ruling(
        DecisionStep.PLACE, "the local transaction is not open and has no row: your decision becomes the row"
    ),
    SourceState.LISTENER: Ruling(
        DecisionStep.MARK, "only its listener can answer, and is not asked: the op marker alone is the decision"
    ),
    **{standing: Ruling(DecisionStep.REFUSE, why) for standing, why in _REFUSED_EITHER_WAY.items()},
}

_CONTRADICTED = {
    (OpKind.COMMIT, SourceState.ROLLED_BACK): "it has a rollback row: it was decided ROLLBACK, and its application got "
    "the error; publish its messages again",
    (OpKind.COMMIT, SourceState.LISTENER_ROLLED_BACK): "its listener answered ROLLBACK, and no answer differs; publish "
    "its messages again",
    (OpKind.ROLLBACK, SourceState.COMMITTED): "it has committed: it has a row; it is delivered once a relay reads an "
    "op marker or asks",
    (OpKind.ROLLBACK, SourceState.LISTENER_COMMITTED): "its listener answered COMMIT, and no answer differs: it is "
    "about to be delivered",
}

RULINGS: dict[tuple[OpKind, SourceState], Ruling] = {  # every case there is
    **{(kind, standing): it for kind in (OpKind.COMMIT, OpKind.ROLLBACK) for standing, it in _EITHER_WAY.items()},
    **{case: Ruling(DecisionStep.REFUSE, why) for case, why in _CONTRADICTED.items()},
    (OpKind.COMMIT, SourceState.COMMITTED): Ruling(DecisionStep.MARK, _AGAIN),
    (OpKind.COMMIT, SourceState.LISTENER_COMMITTED): Ruling(DecisionStep.MARK, _SAME),
    (OpKind.ROLLBACK, SourceState.ROLLED_BACK): Ruling(DecisionStep.MARK, _AGAIN),
    (OpKind.ROLLBACK, SourceState.LISTENER_ROLLED_BACK): Ruling(DecisionStep.MARK, _SAME),
}

YOUNG = Ruling(
    DecisionStep.REFUSE,
    "it is so young that its application may be about to write its row: try again, see --min-age-ms",
)
JUST_ENDED = Ruling(DecisionStep.REFUSE, "its local transaction was open a moment ago: try again")


def of_listener(found: UnsettledTransaction) -> SourceState | None:
    """Return the state of a transaction without a row; None: it has, or will have, one."""
    if found.truth is not Truth.LISTENER:
        return None
    if found.decision is None or found.disputed:
        return SourceState.LISTENER
    is_commit = found.decision.kind is OpKind.COMMIT
    return SourceState.LISTENER_COMMITTED if is_commit else SourceState.LISTENER_ROLLED_BACK


def of_row(row: Row, topic_id: str) -> SourceState:
    if not row.committed:
        return SourceState.ROLLED_BACK
    if row.damage:
        return SourceState.DAMAGED
    return SourceState.COMMITTED if row.topic_id == topic_id else SourceState.ELSEWHERE
