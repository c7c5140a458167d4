"""The circuit breaker: no more transactions are fenced than a crash can explain (R10). Pure: no I/O, no clock.

A database that has the right incarnation may be the wrong one all the same: a copy, or the old half of a database
that was split. Applications commit elsewhere then, and every rollback row here would lose a message. A high share of
FENCED does not show it, because decided transactions are not checked, and after a crash all of them have no
row. What shows it is that the service commits nothing here any more while it goes on beginning. So at most `limit`
transactions of a service are fenced that are all newer than the newest committed row of the service. An
application that comes back after a crash commits, and its first row resets the count.

Their order follows from their ids, which begin with the time of an application's clock. A wrong clock makes the
breaker open later or sooner; it decides nothing.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

PROBE = 10
"""Transactions of a probe."""


class State(enum.StrEnum):
    """Whether a service's transactions may be fenced."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Event(enum.StrEnum):
    """What changes it."""

    EXPLAINED = "a crash can explain it"
    UNUSUAL = "more than the limit, and no commit since"
    PAUSE_OVER = "the pause is over"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.CLOSED, Event.EXPLAINED): State.CLOSED,
    (State.CLOSED, Event.UNUSUAL): State.OPEN,
    (State.OPEN, Event.PAUSE_OVER): State.PROBING,
    (State.PROBING, Event.EXPLAINED): State.CLOSED,
    (State.PROBING, Event.UNUSUAL): State.OPEN,
}
"""What is not here cannot be. A probe that a crash explains is fenced."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When it opens: above `limit` transactions after the newest commit; it is tried again after `pause` seconds."""

    limit: int = 200
    pause: float = 30.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the callback table shows of a service: its newest committed row ("": none), and newer rollback rows."""

    newest_commit: str
    rollback_rows: int


class Breaker:
    """The breaker of one service in one database."""

    def __init__(self, policy: Policy) -> None:
        self.state = State.CLOSED
        self._policy = policy
        self._fenced: int | None = None
        self._until = 0.0

    def offered(self, ids: Sequence[str], now: float) -> Sequence[str]:
        """Return those that may be looked at: all, a probe, or none; `now` is monotonic, in seconds."""
        if self.state is State.OPEN and now >= self._until:
            self._move(Event.PAUSE_OVER)
        return {State.CLOSED: ids, State.PROBING: ids[:PROBE], State.OPEN: ids[:0]}[self.state]

    def wants_evidence(self, count: int) -> bool:
        """Whether the table must be asked before so many are fenced."""
        return self.state is State.PROBING or self._fenced is None or self._fenced + count > self._policy.limit

    def count(self, ids: Sequence[str]) -> None:
        """Count these as fenced, without evidence."""
        self._fenced = (self._fenced or 0) + len(ids)

    def judge(self, ids: Sequence[str], evidence: Evidence, now: float) -> bool:
        """Return whether these may be fenced; `now` is monotonic, in seconds."""
        newer = evidence.rollback_rows + sum(id_ > evidence.newest_commit for id_ in ids)
        if newer > self._policy.limit:
            self._move(Event.UNUSUAL)
            self._until = now + self._policy.pause
            return False
        self._move(Event.EXPLAINED)
        self._fenced = newer
        return True

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]
