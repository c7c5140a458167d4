"""The story of one transaction, of halves or rows, put together from what was found of it. Pure."""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outbox.operator.state.coverage import Coverage
from outbox.operator.state.waiting_rows import TopicState
from outbox.protocol.discard import DiscardReason
from outbox.protocol.identifiers import created_ms
from outbox.protocol.op import OpKind
from outbox.protocol.positions import Positions

_VERSION_7 = 7
LISTED = 5  # messages that a sentence names at most


class EventKind(enum.StrEnum):
    """A kind of event, in the order in which events of one moment are shown."""

    LOCAL = "local transaction"
    WAITS = "row waits"
    IN_BATCH = "row in delivery"
    REFUSED = "row discarded"
    DELIVERED = "row delivered"
    AGAIN = "delivered again"
    HALF = "half stored"
    ROW = "row"
    OP = "op"
    DISCARDED = "discarded"
    LEFT = "left the discard topic"
    VISIBLE = "visible"


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that happened to a transaction."""

    time_ms: int | None  # by the broker or the database; None: a real topic's records have the times of their users
    what: EventKind
    place: str  # topic, or name of the database in the checker's settings, or of the table source
    partition: int | None  # of the topic; None for a row
    offset: int | None  # of the record; None for a row
    position: int | None  # of the message, in table mode the id of its row; None: of the whole transaction
    detail: str
    kind: OpKind | None = field(default=None, repr=False)  # what an op or a row decides; the detail names both
    counts: Positions | None = field(default=None, repr=False)  # the positions that it counts


@dataclass
class Findings(Coverage):
    """What a search found of a transaction, where it looked, and where it did not; and who has to go on with it."""

    transaction_id: str
    position: int | None = None  # the one message that is of interest; None: all
    committed_row: bool | None = None  # whether its callback row is a commit; None: no row was found
    events: list[TimelineEvent] = field(default_factory=list)
    outcomes: dict[str, Status] = field(default_factory=dict)  # of a local transaction, by sources that may have had it
    sources: set[str] = field(default_factory=set)
    backends: dict[str, int] = field(default_factory=dict)  # process ids of the backends in which it is open, by source
    topics: set[str] = field(default_factory=set)
    stamped_ms: int | None = None  # the lowest timestamp of the records of its rows; None: no row is left
    delivered: set[int] = field(default_factory=set)
    behind: str = ""  # the first unsettled transaction of its ordering key, if that is another, and since when
    channel: str = ""
    since_ms: int = 0  # topics were searched from here on, ms since 1970
    members: Mapping[str, int | None] = field(
        default_factory=dict
    )  # that serve the channel, by service; None: not known
    refusing: Sequence[TopicState] = ()  # real topics for which it waits
    silence: Exception | None = None  # why Kafka was not asked; None: it was

    @property
    def conclusion(self) -> Conclusion:
        return conclude(self)

    @property
    def needs_services(self) -> bool:
        return self.conclusion.state in _OF_SERVICES and not self.is_of_rows

    def document(self) -> dict[str, Any]:
        state, sentence = self.conclusion
        return {
            "channel": self.channel,
            "transaction": self.transaction_id,
            "position": self.position,
            "state": state,
            "conclusion": sentence,
            "since_ms": self.since_ms,
            "timeline": self.timeline(),
            **self.covered(),
            "members": self.members,
            "refusing": self.refusing,
            "behind": self.behind or None,
        }

    @property
    def is_of_rows(self) -> bool:
        """Whether the id may be one of table mode: it has rows, or may be of one of the databases."""
        return bool(self.sources or self.outcomes)

    def outcome(self) -> Status | None:
        """Return what became of the local transaction of rows; None: it is not known in which database it was."""
        candidates = self.sources or set(self.outcomes)
        return self.outcomes.get(next(iter(candidates))) if len(candidates) == 1 else None

    def of(self, *kinds: EventKind) -> list[TimelineEvent]:
        return [event for event in self.events if event.what in kinds]

    def ids(self, *kinds: EventKind) -> Counter[int]:
        """Return how often there are events of some kinds, by position."""
        return Counter(event.position for event in self.of(*kinds) if event.position is not None)

    def note(self, event: TimelineEvent) -> None:
        """Take an event, unless it is of another message than that which is of interest."""
        if event.position is None or self.position is None or event.position == self.position:
            self.events.append(event)

    def decisions(self) -> list[TimelineEvent]:
        """COMMIT and ROLLBACK of rows and ops."""
        return [event for event in self.events if event.kind in {OpKind.COMMIT, OpKind.ROLLBACK}]

    def timeline(self) -> list[TimelineEvent]:
        """All events in the order of their times; those whose time is not known come last."""

        def place(one: TimelineEvent) -> tuple[bool, int, int, int]:
            return one.time_ms is None, one.time_ms or 0, list(EventKind).index(one.what), one.offset or 0

        return sorted(self.events, key=place)


class Status(enum.StrEnum):
    """What became of a transaction or a message, as far as was read."""

    UNSETTLED = "unsettled"  # of a half: undecided, or decided and not delivered yet
    VISIBLE = "visible"
    PARTLY_VISIBLE = "partly visible"
    DISCARDED = "discarded"
    PARKED = "parked"
    WAITING = "waiting"
    IN_DELIVERY = "in delivery"
    DELIVERED = "delivered"
    AGAIN = "delivered again"
    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNDECIDED = "undecided"
    CONTRADICTION = "contradiction"
    NOT_FOUND = "not found"


class FoundMessage(NamedTuple):
    """A message of the key."""

    standing: Status
    id: str  # the message id, for `outbox trace`; empty: a record that no relay wrote
    topic: str
    service: str  # of its producer; empty: a record of a real topic does not have it
    place: str
    time_ms: int  # when its local transaction began, or the timestamp of its record, ms since 1970
    detail: str = ""


class Conclusion(NamedTuple):
    """What follows from the events, and from nothing else."""

    state: Status
    sentence: str


_OF_SERVICES = {Status.COMMITTED, Status.UNDECIDED, Status.PARTLY_VISIBLE, Status.PARKED}  # relay or checker end them


def conclude(found: Findings) -> Conclusion:
    """Return the outcome of a transaction of halves or rows; what was not read is never taken for empty."""
    for judge in (_visible, _discarded, _in_table):
        if (conclusion := judge(found)) is not None:
            return conclusion
    if found.is_of_rows:
        return _without_rows(found)
    if not found.events:
        return Conclusion(Status.NOT_FOUND, "nothing of it was found in what was read")
    return _decided(found)


def _visible(found: Findings) -> Conclusion | None:
    seen = found.ids(EventKind.VISIBLE)
    if not seen:
        return None
    if why := _contradicted(found, seen):
        return Conclusion(Status.CONTRADICTION, why)
    if left := sorted(found.ids(EventKind.WAITS, EventKind.IN_BATCH).keys() - seen.keys()):
        return Conclusion(Status.PARTLY_VISIBLE, f"messages {_some(left)} wait in the table, others are visible")
    counting = set(needed(found))
    if missing := counting - seen.keys():
        return Conclusion(Status.PARTLY_VISIBLE, f"messages {Positions.of(missing)} are not visible in what was read")
    if unseen := sorted(found.ids(EventKind.DELIVERED).keys() - seen.keys()):
        why = f"the table has evidence of all, and message {_some(unseen)} is not in what was read"
        return Conclusion(Status.DELIVERED, why)
    of_rows = "each message of it that was found" + (", and no row of it waits" if found.outcomes else "")
    return Conclusion(Status.VISIBLE, f"readers see {'every message of it that counts' if counting else of_rows}")


def _contradicted(found: Findings, seen: Mapping[int, int]) -> str:
    if found.committed_row is False:
        return "messages of it are visible, and its row is a rollback row"
    if twice := [id_ for id_, count in seen.items() if count > 1]:
        return f"message {_some(twice)} of it is visible more than once"
    if found.outcome() is Status.ROLLED_BACK:
        return "messages of it are visible, and its local transaction was rolled back"
    both = sorted(seen.keys() & found.ids(EventKind.REFUSED).keys())
    return f"message {_some(both)} is visible, and its row is discarded" if both else ""


def _discarded(found: Findings) -> Conclusion | None:
    if found.of(EventKind.REFUSED):
        return Conclusion(Status.DISCARDED, "its rows are discarded: `outbox discarded` delivers or drops them")
    last = max(found.of(EventKind.DISCARDED, EventKind.LEFT), key=lambda event: event.offset or 0, default=None)
    if last is None or last.what is EventKind.LEFT:
        return None
    if last.detail.startswith(f"{DiscardReason.UNDECIDED}:"):
        return Conclusion(Status.PARKED, "it is parked in the discard topic, and check-back goes on")
    return Conclusion(Status.DISCARDED, "it is in the discard topic: `outbox discarded` delivers or drops it")


def _in_table(found: Findings) -> Conclusion | None:
    if batch := found.ids(EventKind.IN_BATCH):
        delivered = "Kafka has its batch, so it is delivered; its rows are deleted with the next batch"
        not_yet = "its rows are in the newest batch, and Kafka does not have that yet"
        return Conclusion(Status.IN_DELIVERY, delivered if batch.keys() <= found.delivered else not_yet)
    if count := len(found.of(EventKind.WAITS)):
        what = "1 row of it waits" if count == 1 else f"{count} rows of it wait"
        return Conclusion(Status.WAITING, f"{what} in the message table; `outbox pending` shows why")
    why = "the relay left evidence of its delivery in the table; its records are not in what was read"
    return Conclusion(Status.DELIVERED, why) if found.of(EventKind.DELIVERED) else None


def _without_rows(found: Findings) -> Conclusion:
    if again := found.of(EventKind.AGAIN):
        return Conclusion(Status.AGAIN, "; ".join(f"by an operator, {event.detail}" for event in again))
    outcome = found.outcome()
    if outcome is None:
        known = ", ".join(f"{source}: {outcome}" for source, outcome in sorted(found.outcomes.items()))
        why = f"no row of it is left, and its xid is one of several databases ({known}): name its topic"
        return Conclusion(Status.NOT_FOUND, why)
    if outcome is Status.OPEN:
        where = ", ".join(f"pid {pid} in the database of {source}" for source, pid in found.backends.items())
        return Conclusion(outcome, f"its local transaction is open{f' ({where})' if where else ''}: COMMIT decides")
    return Conclusion(outcome if outcome is Status.ROLLED_BACK else Status.NOT_FOUND, _GONE[outcome])


_GONE = {  # what became of a transaction of rows of which none is left
    Status.COMMITTED: "its local transaction committed, and an operator dropped or erased its rows",
    Status.ROLLED_BACK: "the local transaction with its xid was rolled back: it is never delivered, unless it ran on "
    "another server",
    Status.NOT_FOUND: "the tables of this channel have neither a row nor evidence of it: it belongs to another "
    "channel, table or server, or it was delivered and its evidence is purged, or its rows were deleted by hand, or a "
    "crash took it back; choose its channel with --channel, or name its topic with --topic",
}


def _some(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
    return ", ".join(map(str, sorted(ids)[:LISTED])) + more


def _decided(found: Findings) -> Conclusion:
    """Return the decision of the row, else that of ops which agree."""
    ops = {event.kind for event in found.decisions() if event.what is EventKind.OP}
    unseen, row = "it is not visible in what was read", found.committed_row
    if row is not None and (OpKind.ROLLBACK if row else OpKind.COMMIT) in ops:
        both = "a row of state C and a ROLLBACK" if row else "a rollback row and a COMMIT"
        return Conclusion(Status.CONTRADICTION, f"it has {both} op marker; {unseen}")
    if row:
        return Conclusion(Status.COMMITTED, f"it has a row of state C; {unseen}")
    if row is False:
        return Conclusion(Status.ROLLED_BACK, "it has a rollback row: it is rolled back, and never delivered")
    kinds = {event.kind for event in found.decisions()}
    if not kinds:
        return Conclusion(Status.UNDECIDED, "no row and no op marker that decides it was found in what was read")
    if len(kinds) > 1:
        why = "op markers contradict each other, and no row was found: it is looked up"
        return Conclusion(Status.CONTRADICTION, why)
    committed = Conclusion(Status.COMMITTED, f"it has a COMMIT op marker; {unseen}")
    rolled_back = Conclusion(Status.ROLLED_BACK, f"it has a ROLLBACK op marker and no row; {unseen}")
    return committed if kinds == {OpKind.COMMIT} else rolled_back


def needed(found: Findings) -> Iterable[int]:
    """Return the positions that should be visible: those a row or an op counts, else all with a half."""
    counted = [event.counts for event in found.decisions() if event.kind is OpKind.COMMIT and event.counts is not None]
    positions = set(counted[-1]) if counted else {event.position for event in found.of(EventKind.HALF)}
    return sorted(position for position in positions if position is not None and found.position in {None, position})


def born_ms(transaction_id: str) -> int | None:
    """Return when a transaction id was made, ms since 1970 by its application's clock; None if it has no time."""
    return created_ms(transaction_id) if uuid.UUID(transaction_id).version == _VERSION_7 else None
