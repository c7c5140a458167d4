"""A transaction as the relay sees it, and the one table of what may happen to it."""

from __future__ import annotations

import enum
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field
from itertools import chain

from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions
from relay.delivery.rules.outgoing import Finding
from relay.half.state.half_records import Half, shared_number


class State(enum.StrEnum):
    """State of a transaction in the relay."""

    PENDING = "pending"  # halves were read, no decision is known
    COMMITTED = "committed"  # decided COMMIT; waits for listed halves, or behind an earlier one of its ordering key
    ROLLED_BACK = "rolled back"  # decided ROLLBACK; settled undelivered once its listed halves were read
    READY = "ready"  # handed out to be delivered
    DISCARDED = "discarded"  # decided COMMIT, but it cannot be delivered: it is in the discard topic


PENDING, COMMITTED, ROLLED_BACK = State.PENDING, State.COMMITTED, State.ROLLED_BACK
READY, DISCARDED = State.READY, State.DISCARDED
"""For what is done for each message: in Python 3.11, looking a member up in its class takes ten times as long."""


class Event(enum.StrEnum):
    """What can happen to a transaction."""

    COMMIT = "commit op"
    ROLLBACK = "rollback op"
    UNKNOWN = "unknown op"
    CONTRADICTION = "op that contradicts the decision"
    STRAY = "no half of it is among those that count"
    FREED = "complete, or never to be, and first of its ordering key"
    PARKED = "parked"
    REFUSED = "refused by pre-flight"
    DELIVER = "deliver op"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.PENDING, Event.COMMIT): State.COMMITTED,
    (State.PENDING, Event.ROLLBACK): State.ROLLED_BACK,
    (State.PENDING, Event.UNKNOWN): State.PENDING,
    (State.PENDING, Event.PARKED): State.PENDING,  # whole to the discard topic; it goes on being looked up
    (State.COMMITTED, Event.COMMIT): State.COMMITTED,
    (State.COMMITTED, Event.UNKNOWN): State.COMMITTED,
    (State.COMMITTED, Event.CONTRADICTION): State.PENDING,  # looked up, never first-wins (R14)
    (State.COMMITTED, Event.ROLLBACK): State.ROLLED_BACK,  # from the checker or an operator: they saw the row
    (State.COMMITTED, Event.STRAY): State.ROLLED_BACK,  # a struck savepoint, a straggler, a copy by a mirror
    (State.COMMITTED, Event.FREED): State.READY,
    (State.ROLLED_BACK, Event.ROLLBACK): State.ROLLED_BACK,
    (State.ROLLED_BACK, Event.UNKNOWN): State.ROLLED_BACK,
    (State.ROLLED_BACK, Event.CONTRADICTION): State.PENDING,
    (State.ROLLED_BACK, Event.COMMIT): State.COMMITTED,  # from the checker or an operator
    (State.READY, Event.REFUSED): State.DISCARDED,
    (State.DISCARDED, Event.DELIVER): State.READY,  # from an operator; pre-flight looks again
    (State.DISCARDED, Event.ROLLBACK): State.ROLLED_BACK,  # from the checker or an operator: it is removed
}
"""Every transition there is; what is not here cannot happen. docs/protocol.md shows the same table."""

_EVENTS = {OpKind.COMMIT: Event.COMMIT, OpKind.ROLLBACK: Event.ROLLBACK, OpKind.UNKNOWN: Event.UNKNOWN}
_UNKNOWN = Event.UNKNOWN
_FIRST_ONLY = Positions.first(1)
"""Positions of a transaction of one message, as most are."""
_SAW_THE_ROW = frozenset({OpSource.CHECKER, OpSource.OPERATOR})


class Single(Mapping[int, Half]):
    """The only half of a transaction, without its body, by its position: very many may pend.

    A dict and a `Half` take seven times its room.
    """

    __slots__ = ("_aim", "_append_time", "_offset", "_position")

    def __init__(self, position: int, half: Half) -> None:
        self._position, self._offset, self._append_time = position, half.offset, shared_number(half.append_time)
        self._aim = half.target()

    def __getitem__(self, position: int) -> Half:
        if position != self._position:
            raise KeyError(position)
        return Half(self._offset, self._append_time, None, None, (), None, "", self._aim)

    def __iter__(self) -> Iterator[int]:
        return iter((self._position,))

    def values(self) -> ValuesView[Half]:
        """Return the half; those of `Mapping` take ten times as long."""
        return {self._position: self[self._position]}.values()

    def items(self) -> ItemsView[int, Half]:
        return {self._position: self[self._position]}.items()

    def __len__(self) -> int:
        return 1


@dataclass(slots=True, eq=False)
class Transaction:
    """The halves of one transaction in one half partition, and what is known of its decision."""

    id: str
    service: str
    truth: Truth  # who answers check requests
    ordering_key: bytes | None
    """Its order is kept among those of its service with the same key; None for one without order."""
    incarnation: str | None
    due: int  # when it is to be asked about next, ms of broker time
    appended: int = 0  # append time of the half that was read first, ms of broker time
    halves: Mapping[int, Half] = field(default_factory=dict)  # the halves that were read, by position
    size: int = 0  # their bytes in memory, and those of the copies, about
    held_bytes: int = 0  # bytes of the bodies in memory, about; 0 if they were let go
    gaps: int = 0  # how often halves of others are between its own
    last_offset: int = -1  # of the half that was read last
    copies: Sequence[tuple[int, Half]] = ()
    """Further halves, with the positions that were read before; the decision's offsets select one."""
    is_first: bool = True  # whether none of its service and ordering key is before it
    behind: Transaction | None = None  # the next one of its service and ordering key
    state: State = State.PENDING
    decision: OpEntry | None = None
    decided_by: OpSource | None = None
    decided_at: int = 0  # append time of that, ms of broker time
    disputed: bool = False  # op markers contradicted each other: only a role that has the truth decides it from now on
    asked: int = 0  # check requests so far
    unknown_answers: int = 0  # UNKNOWN answers so far
    last_answer: str = ""  # the last one's reason
    given_up: bool = False  # whether it waits for no real topic any more (`relay.delivery.rules.topic_gate`)
    discarded: Finding | None = None
    """Why its halves are in the discard topic, with their bodies: parked, while it is undecided; None: they are not."""
    _counted: list[Half] | None = None  # what `counted()` has found, until halves or decision change

    def add(self, position: int, half: Half) -> bool:
        """Add a half; return whether it is the first one of its position."""
        if self.halves and half.offset != self.last_offset + 1:
            self.gaps += 1
        self.last_offset, self._counted = half.offset, None
        halves = self.halves
        if position not in halves:
            if isinstance(halves, dict):
                halves[position] = half
            else:
                self._put(position, half)
            return True
        self.copies = [*self.copies, (position, half)]
        self._choose()
        return False

    def _put(self, position: int, half: Half) -> None:
        if not isinstance(self.halves, dict):
            self.halves = dict(self.halves)
        self.halves[position] = half

    def event(self, entry: OpEntry, source: OpSource) -> Event | None:
        """Return what an op entry means for this transaction in its present state; None: nothing."""
        if self.state is DISCARDED:
            return self._event_in_the_discard_topic(entry, source)
        event = _EVENTS.get(entry.kind)
        known = self.decision
        if event is None or event is _UNKNOWN or source in _SAW_THE_ROW:
            return event
        if known is None:
            return None if self.disputed and not self._knows(source) else event
        if _agree(known, entry):
            return event
        return None if self.decided_by in _SAW_THE_ROW else Event.CONTRADICTION

    def _event_in_the_discard_topic(self, entry: OpEntry, source: OpSource) -> Event | None:
        """Pre-flight looks again when an operator asks for it; a rollback must be of a role that read the row."""
        if entry.kind is OpKind.ROLLBACK and source in _SAW_THE_ROW:
            return Event.ROLLBACK
        return Event.DELIVER if entry.kind is OpKind.DELIVER and source is OpSource.OPERATOR else None

    def _knows(self, source: OpSource) -> bool:
        """Whether a role that has not read the row still answers for the truth: a listener that was asked."""
        return self.truth is Truth.LISTENER and source is OpSource.LISTENER

    def decide(self, entry: OpEntry, source: OpSource, at: int) -> None:
        """Take a decision. One of a role that read the row stays its own when others repeat it."""
        if self.decision is not None and self.decided_by in _SAW_THE_ROW and source not in _SAW_THE_ROW:
            return
        self.decision, self.decided_by, self.decided_at, self.disputed = entry, source, at, False
        self._counted = None
        self._choose()

    def dispute(self) -> None:
        """Remove a decision that another one contradicts; it is looked up, never first-wins (R14)."""
        self.decision, self.decided_by, self.disputed, self.given_up = None, None, True, False
        self._counted = None

    def _choose(self) -> None:
        """Of the halves of one position, let the one count that is between the decision's offsets."""
        decision = self.decision
        if decision is None or not self.copies:
            return
        copies = list(self.copies)
        for index, (position, copy) in enumerate(copies):
            present = self.halves[position]
            if _between(decision, copy) and not _between(decision, present):
                self._put(position, copy)
                copies[index] = (position, present)
        self.copies = copies

    def move(self, event: Event) -> None:
        """Take a transition of the table."""
        self.state = TRANSITIONS[self.state, event]

    def counted(self) -> list[Half]:
        """Return the halves that the decision counts, in the order of their positions."""
        if self._counted is None:
            self._counted = self._find_counted()
        return self._counted

    def _find_counted(self) -> list[Half]:
        entry = self.decision
        if entry is None:
            return []
        if entry.positions.runs == _FIRST_ONLY.runs and len(self.halves) == 1:
            half = self.halves.get(0)
            return [half] if half is not None and _between(entry, half) else []
        found = (self.halves.get(position) for position in entry.positions)
        return [half for half in found if half and _between(entry, half)]

    def keep_counted(self) -> None:
        """Forget the halves that the decision does not count; they are settled undelivered by it."""
        counted = self.counted()
        self.halves = {position: half for position, half in self.halves.items() if half in counted}
        self.copies = ()

    def all_halves(self) -> Iterable[Half]:
        """Every half that was read, counted or not."""
        if not self.copies:
            return self.halves.values()
        return chain(self.halves.values(), (half for _, half in self.copies))

    def by_offset(self) -> list[tuple[int, Half]]:
        """Every half that was read, with its position, in the order of their offsets."""
        return sorted(chain(self.halves.items(), self.copies), key=lambda pair: pair[1].offset)

    def replace(self, halves: Mapping[int, Half]) -> None:
        """Put other halves, by offset, into the places of those that are here: with bodies, or without."""
        self.halves = {position: halves.get(half.offset, half) for position, half in self.halves.items()}
        self.copies = tuple((position, halves.get(half.offset, half)) for position, half in self.copies)
        self._counted = None

    def let_bodies_go(self) -> None:
        """Remember of all halves only where they are; they are fetched again when they are needed."""
        if len(self.halves) == 1 and not self.copies:
            ((position, half),) = self.halves.items()
            self.halves, self._counted = Single(position, half), None
        else:
            self.replace({half.offset: half.without_body() for half in self.all_halves()})
        self.size, self.due = shared_number(self.size), shared_number(self.due)

    def expected(self) -> int:
        """Return how many messages are decided; without a decision none of those that were read counts."""
        return len(self.halves) if self.decision is None else len(self.decision.positions)

    def complete(self) -> bool:
        """Whether every position that counts was found."""
        return len(self.counted()) == self.expected()

    def may_wait(self) -> bool:
        """Whether it can wait for a real topic: it does not come from the discard topic, and lacks nothing."""
        return self.discarded is None and self.complete()

    def lacks(self) -> Finding | None:
        """Return what it lacks itself, whatever real topics take."""
        counted = self.counted()
        if missing := self.expected() - len(counted):
            return Finding(DiscardReason.INCOMPLETE, f"{missing} of its messages are not in the half topic")
        if all(half.has_body() for half in counted):
            return None
        return Finding(DiscardReason.MALFORMED, "the body of one of its messages could not be read")

    def seen(self) -> tuple[Positions, int, int]:
        """Positions read so far, and the offsets of the first and last of them."""
        offsets = [half.offset for half in self.halves.values()]
        positions = _FIRST_ONLY if len(offsets) == 1 and 0 in self.halves else Positions.of(self.halves)
        return positions, min(offsets), max(offsets)

    def first(self) -> Half:
        return next(iter(self.halves.values()))


def _between(entry: OpEntry, half: Half) -> bool:
    return entry.first_offset <= half.offset <= entry.last_offset


def _agree(known: OpEntry, entry: OpEntry) -> bool:
    """Whether two decisions are one: of a rollback, what it lists makes no difference."""
    if known.kind is not entry.kind:
        return False
    return known.kind is OpKind.ROLLBACK or (known.positions, known.first_offset, known.last_offset) == (
        entry.positions,
        entry.first_offset,
        entry.last_offset,
    )
