"""The story of a transaction: what follows from what was found, and nothing more."""

import uuid
from dataclasses import replace

import pytest

from outbox._kafka.range_reader import Span, cut_spans
from outbox.operator.state.story import EventKind, Findings, Status, TimelineEvent, born_ms, conclude, needed
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpKind
from outbox.protocol.positions import Positions

HALVES = [TimelineEvent(1, EventKind.HALF, "h", 0, offset, offset, "d") for offset in (0, 1)]


def _op(kind: OpKind | None, count: int = 2) -> TimelineEvent:
    counts = Positions.first(count) if kind is OpKind.COMMIT else None
    return TimelineEvent(3, EventKind.OP, "o", 0, 0, None, "d", kind, counts)


def _row(kind: OpKind) -> TimelineEvent:
    return TimelineEvent(2, EventKind.ROW, "db", None, None, None, "d", kind, Positions.first(2))


def _visible(position: int, offset: int = 0) -> TimelineEvent:
    return TimelineEvent(4, EventKind.VISIBLE, "t", 0, offset, position, "d")


def _discard(what: EventKind, offset: int, reason: str = "TOO_LARGE") -> TimelineEvent:
    kind = OpKind.COMMIT if what is EventKind.DISCARDED and reason == "TOO_LARGE" else None
    return TimelineEvent(4, what, "d", 0, offset, None, f"{reason}: detail", kind)


def _found(*events: TimelineEvent, position: int | None = None) -> Findings:
    found = Findings("id", position)
    for event in events:
        found.note(event)
        if event.what is EventKind.ROW:
            found.committed_row = event.kind is OpKind.COMMIT
    return found


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], Status.NOT_FOUND),
        (HALVES, Status.UNDECIDED),
        ([*HALVES, _op(None)], Status.UNDECIDED),
        ([*HALVES, _op(OpKind.COMMIT)], Status.COMMITTED),
        ([*HALVES, _op(OpKind.ROLLBACK)], Status.ROLLED_BACK),
        ([*HALVES, _op(OpKind.ROLLBACK), _op(OpKind.COMMIT)], Status.CONTRADICTION),
        ([*HALVES, _op(OpKind.ROLLBACK), _row(OpKind.COMMIT)], Status.CONTRADICTION),
        ([*HALVES, _op(OpKind.COMMIT), _row(OpKind.COMMIT)], Status.COMMITTED),
        ([*HALVES, _op(OpKind.COMMIT), _row(OpKind.ROLLBACK)], Status.CONTRADICTION),
        ([*HALVES, _op(OpKind.ROLLBACK), _row(OpKind.ROLLBACK)], Status.ROLLED_BACK),
        ([*HALVES, _op(OpKind.ROLLBACK), _row(OpKind.COMMIT), _visible(0), _visible(1, 1)], Status.VISIBLE),
        ([*HALVES, _op(OpKind.COMMIT), _visible(0)], Status.PARTLY_VISIBLE),
        ([*HALVES, _op(OpKind.COMMIT, 1), _visible(0)], Status.VISIBLE),
        ([*HALVES, _row(OpKind.COMMIT), _visible(0), _visible(1, 1)], Status.VISIBLE),
        ([*HALVES, _row(OpKind.COMMIT), _visible(0), _visible(1, 1), _visible(1, 2)], Status.CONTRADICTION),
        ([*HALVES, _row(OpKind.ROLLBACK), _visible(0)], Status.CONTRADICTION),
        ([_discard(EventKind.DISCARDED, 1)], Status.DISCARDED),
        ([_discard(EventKind.DISCARDED, 1, "UNDECIDED")], Status.PARKED),
        ([*HALVES, _discard(EventKind.DISCARDED, 1, "UNDECIDED"), _discard(EventKind.LEFT, 2)], Status.UNDECIDED),
        ([_discard(EventKind.DISCARDED, 1), _discard(EventKind.LEFT, 2), _visible(0), _visible(1, 1)], Status.VISIBLE),
    ],
)
def test_what_follows(events: list[TimelineEvent], expected: Status) -> None:
    assert conclude(_found(*events)).state is expected


def test_one_message_can_be_of_interest_alone() -> None:
    found = _found(*HALVES, _op(OpKind.COMMIT), _visible(0), _visible(1, 1), position=1)
    assert [event.position for event in found.timeline()] == [1, None, 1]
    assert list(needed(found)) == [1]
    assert conclude(found).state is Status.VISIBLE


def test_the_timeline_is_in_the_order_of_time_then_of_what_comes_before_what() -> None:
    late, early = _visible(0), replace(HALVES[0], time_ms=4)
    op, some_time = replace(_op(OpKind.COMMIT), time_ms=4), replace(_visible(1), time_ms=None)
    assert _found(some_time, late, op, early, HALVES[1]).timeline() == [HALVES[1], early, op, late, some_time]


def test_an_id_tells_its_time_or_that_it_does_not() -> None:
    assert born_ms(make_transaction_id(1_700_000_000_123, bytes(10))) == 1_700_000_000_123
    assert born_ms(str(uuid.uuid4())) is None


def test_spans_are_cut_the_long_ones_first() -> None:
    spans = [Span("t", 0, 10, 20), Span("t", 1, 0, 1_000), Span("t", 2, 5, 5), Span("t", 3, 0, 500)]
    assert cut_spans(spans, 10_000) == spans
    kept = cut_spans(spans, 210)
    assert kept == [Span("t", 0, 10, 20), Span("t", 1, 0, 100), Span("t", 2, 5, 5), Span("t", 3, 0, 100)]
