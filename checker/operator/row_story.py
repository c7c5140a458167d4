"""The story of one transaction of table mode, put together from what was found of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from checker.operator.timeline import Conclusion, EventKind, Findings, Status
from outbox.outcome import Outcome

LISTED = 5
"""Rows that a sentence names at most."""


@dataclass
class RowFindings:
    """What the databases hold of a transaction of table mode.

    Args:
        outcomes: What the tables and Postgres have of it, by the table sources in whose databases it may have been.
        backends: Process ids of the backends in which it is open, by source.
        since_ms: The lowest timestamp of its records, ms since 1970; None: no row is left.
        delivered: Rows whose batch Kafka has.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    backends: dict[str, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    since_ms: int | None = None
    delivered: set[int] = field(default_factory=set)

    @property
    def applies(self) -> bool:
        """Return whether the id may be one of table mode: it has rows, or may be of one of the databases."""
        return bool(self.sources or self.outcomes)

    def outcome(self) -> Outcome | None:
        """Return what became of the local transaction; None: it is not known in which database it was."""
        candidates = self.sources or set(self.outcomes)
        return self.outcomes.get(next(iter(candidates))) if len(candidates) == 1 else None


def conclude_rows(found: Findings, rows: RowFindings) -> Conclusion:
    """Return what became of a transaction of table mode; what was not read is never taken for empty."""
    for judge in (_visible, _discarded, _delivering, _waiting, _delivered):
        if (conclusion := judge(found, rows)) is not None:
            return conclusion
    return _without_rows(rows)


def _ids(found: Findings, what: EventKind) -> Counter[int]:
    return Counter(event.position for event in found.of(what) if event.position is not None)


def _visible(found: Findings, rows: RowFindings) -> Conclusion | None:
    visible = _ids(found, EventKind.VISIBLE)
    if not visible:
        return None
    if twice := [id_ for id_, count in visible.items() if count > 1]:
        return Conclusion(Status.CONTRADICTION, f"message {_some(twice)} of it is visible more than once")
    if rows.outcome() is Outcome.ROLLED_BACK:
        return Conclusion(Status.CONTRADICTION, "messages of it are visible, and its local transaction was rolled back")
    if both := sorted(visible.keys() & _ids(found, EventKind.REFUSED).keys()):
        return Conclusion(Status.CONTRADICTION, f"message {_some(both)} is visible, and its row is discarded")
    left = sorted((_ids(found, EventKind.WAITS) | _ids(found, EventKind.IN_BATCH)).keys() - visible.keys())
    if left:
        return Conclusion(Status.PARTLY_VISIBLE, f"messages {_some(left)} wait in the table, others are visible")
    return _whole(sorted(_ids(found, EventKind.DELIVERED).keys() - visible.keys()))


def _whole(unseen: Sequence[int]) -> Conclusion:
    """Return the conclusion for a transaction without a row that waits.

    Args:
        unseen: Ids of rows of which there is evidence, and no record in what was read.
    """
    if unseen:
        why = f"the table has evidence of all, and message {_some(unseen)} is not in what was read"
        return Conclusion(Status.DELIVERED, why)
    return Conclusion(Status.VISIBLE, "readers see each message of it that was found, and no row of it waits")


def _discarded(found: Findings, rows: RowFindings) -> Conclusion | None:
    del rows
    if not found.of(EventKind.REFUSED):
        return None
    return Conclusion(Status.DISCARDED, "its rows are discarded: `outbox discarded` delivers or drops them")


def _delivering(found: Findings, rows: RowFindings) -> Conclusion | None:
    batch = _ids(found, EventKind.IN_BATCH)
    if not batch:
        return None
    if batch.keys() <= rows.delivered:
        why = "Kafka has its batch, so it is delivered; its rows are deleted with the next batch"
    else:
        why = "its rows are in the newest batch, and Kafka does not have that yet"
    return Conclusion(Status.IN_DELIVERY, why)


def _waiting(found: Findings, rows: RowFindings) -> Conclusion | None:
    del rows
    count = len(found.of(EventKind.WAITS))
    if not count:
        return None
    what = "1 row of it waits" if count == 1 else f"{count} rows of it wait"
    why = f"{what} in the message table; `outbox pending` shows why"
    return Conclusion(Status.WAITING, why)


def _delivered(found: Findings, rows: RowFindings) -> Conclusion | None:
    del rows
    if not found.of(EventKind.DELIVERED):
        return None
    return Conclusion(
        Status.DELIVERED, "the relay left evidence of its delivery in the table; its records are not in what was read"
    )


def _without_rows(rows: RowFindings) -> Conclusion:
    outcome = rows.outcome()
    if outcome is None:
        known = ", ".join(f"{source}: {outcome}" for source, outcome in sorted(rows.outcomes.items()))
        return Conclusion(
            Status.NOT_FOUND, f"no row of it is left, and its xid is one of several databases ({known}): name its topic"
        )
    return _BY_OUTCOME[outcome](rows.backends)


def _open(backends: Mapping[str, int]) -> Conclusion:
    where = ", ".join(f"pid {pid} in the database of {source}" for source, pid in backends.items())
    return Conclusion(Status.OPEN, f"its local transaction is open{f' ({where})' if where else ''}: COMMIT decides")


_BY_OUTCOME: Mapping[Outcome, Callable[[Mapping[str, int]], Conclusion]] = {
    Outcome.OPEN: _open,
    Outcome.COMMITTED: lambda _: Conclusion(
        Status.NOT_FOUND,
        "its local transaction committed, and its rows were discarded: `outbox discarded` has moved them, under "
        "another id, or dropped them",
    ),
    Outcome.ROLLED_BACK: lambda _: Conclusion(
        Status.ROLLED_BACK,
        "the local transaction with its xid was rolled back: it is never delivered, unless it ran on another server",
    ),
    Outcome.TOO_OLD: lambda _: Conclusion(
        Status.NOT_FOUND,
        "the tables of this channel have neither a row nor evidence of it: it belongs to another channel, table or "
        "server, or it was delivered and its evidence is purged, or its rows were deleted by hand, or a crash took it "
        "back; choose its channel with --channel, or name its topic with --topic",
    ),
}


ADVICE = {
    Status.OPEN: "wait until it ends, or end its backend with pg_terminate_backend(pid), which rolls it back",
    Status.WAITING: "see `outbox pending` for what it waits for, and remove that cause; the relay then delivers it",
    Status.IN_DELIVERY: "see `outbox pending` for the owner of its table source and for its progress",
    Status.DISCARDED: "use `outbox discarded deliver` or `outbox discarded drop`",
    Status.DELIVERED: "nothing is to be done",
    Status.ROLLED_BACK: "nothing is to be done",
}
"""What an operator can do instead of a decision."""


def advice(status: Status) -> str:
    """Return why a transaction of table mode cannot be decided by hand, and what can be done instead."""
    instead = ADVICE.get(status, "see `outbox trace`")
    return f"COMMIT of the local transaction alone decides in table mode, so nothing is left to decide: {instead}"


def _some(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
    return ", ".join(map(str, sorted(ids)[:LISTED])) + more
