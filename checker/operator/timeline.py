"""The story of one transaction, put together from what was found of it. Pure."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from outbox.protocol.discard import DiscardReason
from outbox.protocol.identifiers import created_ms
from outbox.protocol.op import OpKind
from outbox.protocol.positions import Positions

_VERSION_7 = 7


class EventKind(enum.StrEnum):
    """A kind of event, in the order in which events of one moment are shown."""

    LOCAL = "local transaction"
    WAITS = "row waits"
    IN_BATCH = "row in delivery"
    REFUSED = "row discarded"
    DELIVERED = "row delivered"
    HALF = "half stored"
    CHECK = "asked"
    ROW = "row"
    OP = "op"
    DISCARDED = "discarded"
    LEFT = "left the discard topic"
    VISIBLE = "visible"


_ORDER = {what: number for number, what in enumerate(EventKind)}


class TimelineEvent(NamedTuple):
    """Something that happened to a transaction.

    Args:
        time_ms: When, ms since 1970: the broker's time of the record's append, or the database's time; None if it is
            not known, as on a real topic whose records carry the timestamps of their halves or users.
        place: Topic, or name of the database in the checker's settings, or of the table source.
        partition: Of the topic; None for a row.
        offset: Of the record; None for a row.
        position: Of the message, in table mode the id of its row; None for what is about the whole transaction.
        kind: What an op or a row decides; None for all else.
        counts: The positions that an op or a row counts; None for all else.
    """

    time_ms: int | None
    what: EventKind
    place: str
    partition: int | None
    offset: int | None
    position: int | None
    detail: str
    kind: OpKind | None = None
    counts: Positions | None = None


class Searched(NamedTuple):
    """A span that was read.

    Args:
        stop: The one behind the last.
        end: Where the partition ends for a read_committed reader.
    """

    topic: str
    partition: int
    start: int
    stop: int
    end: int


@dataclass
class Findings:
    """What a search found, where it looked, and where it did not.

    Args:
        position: The one message that is of interest; None: all.
        committed_row: Whether its row is a commit; None: no row was found.
    """

    transaction_id: str
    position: int | None = None
    committed_row: bool | None = None
    events: list[TimelineEvent] = field(default_factory=list)
    searched: list[Searched] = field(default_factory=list)
    databases: list[str] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)

    def of(self, what: EventKind) -> list[TimelineEvent]:
        """Return the events of a kind, in the order in which they were found."""
        return [event for event in self.events if event.what is what]

    def note(self, event: TimelineEvent) -> None:
        """Take an event, unless it is of another message than that which is of interest."""
        if event.position is None or self.position is None or event.position == self.position:
            self.events.append(event)

    def decisions(self) -> list[TimelineEvent]:
        """COMMIT and ROLLBACK of rows and ops."""
        return [event for event in self.events if event.kind in {OpKind.COMMIT, OpKind.ROLLBACK}]

    def timeline(self) -> list[TimelineEvent]:
        """All events in the order of their times; those whose time is not known come last."""
        return sorted(self.events, key=_moment)


def _moment(event: TimelineEvent) -> tuple[bool, int, int, int]:
    return event.time_ms is None, event.time_ms or 0, _ORDER[event.what], event.offset or 0


class Status(enum.StrEnum):
    """What became of a transaction, as far as was read."""

    VISIBLE = "visible"
    PARTLY_VISIBLE = "partly visible"
    DISCARDED = "discarded"
    PARKED = "parked"
    WAITING = "waiting"
    IN_DELIVERY = "in delivery"
    DELIVERED = "delivered"
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNDECIDED = "undecided"
    CONTRADICTION = "contradiction"
    NOT_FOUND = "not found"


class Conclusion(NamedTuple):
    """What follows from the events, and from nothing else."""

    state: Status
    sentence: str


def conclude(found: Findings) -> Conclusion:
    """Return the outcome of a transaction; unread topics are never taken for empty."""
    if not found.events:
        return Conclusion(Status.NOT_FOUND, "nothing of it was found in what was read")
    visible = found.of(EventKind.VISIBLE)
    if visible:
        return _visible(found, visible)
    discarded = _last(found.events, {EventKind.DISCARDED, EventKind.LEFT})
    if discarded is not None and discarded.what is EventKind.DISCARDED:
        return _discarded(discarded)
    return _decided(found)


def _visible(found: Findings, visible: Sequence[TimelineEvent]) -> Conclusion:
    if found.committed_row is False:
        return Conclusion(Status.CONTRADICTION, "messages of it are visible, and its row is a rollback row")
    seen = {event.position for event in visible if event.position is not None}
    if len(visible) > len(seen):
        return Conclusion(Status.CONTRADICTION, "a message of it is visible more than once")
    missing = set(needed(found)) - seen
    if missing:
        return Conclusion(Status.PARTLY_VISIBLE, f"messages {Positions.of(missing)} are not visible in what was read")
    return Conclusion(Status.VISIBLE, "readers see every message of it that counts")


def _discarded(manifest: TimelineEvent) -> Conclusion:
    if manifest.detail.startswith(f"{DiscardReason.UNDECIDED}:"):
        return Conclusion(Status.PARKED, "it is parked in the discard topic, and check-back goes on")
    return Conclusion(Status.DISCARDED, "it is in the discard topic: `outbox discarded` delivers or drops it")


def _decided(found: Findings) -> Conclusion:
    """Return the decision of the row, else that of ops which agree."""
    ops = {event.kind for event in found.decisions() if event.what is EventKind.OP}
    if found.committed_row is not None:
        contradicts = _OPPOSITES[found.committed_row] in ops
        return Conclusion(*(_CONTRADICTED if contradicts else _BY_ROW)[found.committed_row])
    kinds = {event.kind for event in found.decisions()}
    if len(kinds) > 1:
        return Conclusion(
            Status.CONTRADICTION, "op markers contradict each other, and no row was found: it is looked up"
        )
    if kinds:
        return Conclusion(*_BY_OP[kinds == {OpKind.COMMIT}])
    return Conclusion(Status.UNDECIDED, "neither a row nor an op marker that decides it was found in what was read")


_BY_ROW = {
    True: (Status.COMMITTED, "it has a row of state C; it is not visible in what was read"),
    False: (Status.ROLLED_BACK, "it has a rollback row: it is rolled back, and never delivered"),
}
_OPPOSITES = {True: OpKind.ROLLBACK, False: OpKind.COMMIT}
_CONTRADICTED = {
    True: (
        Status.CONTRADICTION,
        "it has a row of state C and a ROLLBACK op marker; it is not visible in what was read",
    ),
    False: (
        Status.CONTRADICTION,
        "it has a rollback row and a COMMIT op marker; it is not visible in what was read",
    ),
}
_BY_OP = {
    True: (Status.COMMITTED, "it has a COMMIT op marker; it is not visible in what was read"),
    False: (
        Status.ROLLED_BACK,
        "it has a ROLLBACK op marker and no row; it is not visible in what was read",
    ),
}


def needed(found: Findings) -> Iterable[int]:
    """Return the positions that should be visible: those a row or an op counts, else all with a half."""
    counted = [event.counts for event in found.decisions() if event.kind is OpKind.COMMIT and event.counts is not None]
    positions = set(counted[-1]) if counted else {event.position for event in found.of(EventKind.HALF)}
    return sorted(position for position in positions if position is not None and found.position in {None, position})


def _last(events: Iterable[TimelineEvent], kinds: set[EventKind]) -> TimelineEvent | None:
    chosen = [event for event in events if event.what in kinds]
    return max(chosen, key=lambda event: event.offset or 0) if chosen else None


def folded(events: Sequence[TimelineEvent]) -> list[TimelineEvent]:
    """Format a timeline; of consecutive check requests show the first, and the last with their number."""
    told: list[TimelineEvent] = []
    for what, group in groupby(events, key=lambda event: event.what):
        some = list(group)
        if what is EventKind.CHECK and len(some) > 2:  # noqa: PLR2004 - two are the first and the last
            some = [some[0], some[-1]._replace(detail=f"{some[-1].detail}; {len(some) - 2} times in between, too")]
        told += some
    return told


def born_ms(transaction_id: str) -> int | None:
    """Return when a transaction id was made, ms since 1970 by its application's clock; None if it has no time."""
    return created_ms(transaction_id) if uuid.UUID(transaction_id).version == _VERSION_7 else None
