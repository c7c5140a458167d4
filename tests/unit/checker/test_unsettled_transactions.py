"""What is unsettled in a channel, gathered from its records."""

from dataclasses import replace

import pytest

from outbox._kafka.range_reader import Span
from outbox.errors import UsageError
from outbox.operator.reading.channel_reader import NEAR, unsettled_spans
from outbox.operator.state.channel_state import ChannelState
from outbox.operator.state.unsettled_transactions import Choice, Gathering, Half, RecordedDecision, ServiceSum
from outbox.operator.views import parse_duration
from outbox.operator.words import halves
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import HalfControl, HalfOptions, Truth
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.positions import Positions

TOPIC = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"


def _half(offset: int, id_: str = "a", position: int = 0, partition: int = 0, service: str = "orders") -> Half:
    control = HalfControl("real", -1, id_, position, service, Truth.ROW, HalfOptions(incarnation="today"))
    return Half(partition, offset, 1_000 + offset, control)


def _entry(kind: OpKind, id_: str = "a", partition: int = 0, topic: str = TOPIC, checks: int = 0) -> OpEntry:
    return OpEntry(kind, id_, topic, partition, Positions.first(1), 0, 0, checks)


def _manifest(id_: str, reason: DiscardReason, *offsets: tuple[int, int]) -> Manifest:
    places = offsets or ((0, 1),)
    return Manifest(id_, "orders", Truth.ROW, TOPIC, 0, reason, "d", None, Positions.first(1), places, 7, checks=3)


def test_halves_of_a_transaction_are_put_together() -> None:
    gathering = Gathering(100)
    for half in (_half(5), _half(7, position=1), _half(9, position=0), _half(8, partition=1)):
        gathering.add_half(half)
    found = gathering.found["a"]
    assert (found.offsets, found.positions) == ({0: 5, 1: 7}, Positions.first(2))
    assert (found.first_offset, found.last_offset, found.first_append_time) == (5, 7, 1_005)
    assert (found.targets, found.incarnation, found.decision) == (frozenset({"real"}), "today", None)
    request = found.request(TOPIC)
    assert (request.positions, request.first_offset, request.last_offset) == (Positions.first(2), 5, 7)
    assert (request.partition, request.topic_id, request.incarnation) == (0, TOPIC, "today")


def test_no_more_halves_of_a_partition_are_taken_than_allowed() -> None:
    gathering = Gathering(2)
    for half in (_half(1, "a"), _half(2, "b"), _half(1, "c", partition=1)):
        gathering.add_half(half)
    assert (gathering.is_full(0), gathering.is_full(1)) == (True, False)


def test_one_transaction_can_be_of_interest_alone() -> None:
    gathering = Gathering(2, Choice("b"))
    for half in (_half(1, "a"), _half(2, "b"), _half(3, "c")):
        gathering.add_half(half)
    gathering.add_manifest(_manifest("c", DiscardReason.UNDECIDED, (0, 3)))
    gathering.add_manifest(_manifest("c", DiscardReason.TOO_LARGE, (0, 3)))
    assert (set(gathering.found), gathering.refused, gathering.is_full(0)) == ({"b"}, None, False)
    gathering.add_manifest(_manifest("b", DiscardReason.TOO_LARGE, (0, 2)))
    assert gathering.refused is DiscardReason.TOO_LARGE


def test_an_op_counts_in_its_place_only() -> None:
    gathering = Gathering(100)
    gathering.add_half(_half(1))
    for entry in (
        _entry(OpKind.COMMIT, topic="another"),
        _entry(OpKind.COMMIT, partition=1),
        _entry(OpKind.COMMIT, id_="unknown"),
        _entry(OpKind.UNKNOWN, checks=4),
    ):
        gathering.add_op(entry, OpSource.LISTENER, 1, 1, TOPIC)
    found = gathering.found["a"]
    assert (found.decisions, found.decision, found.checks) == ([], None, 4)


def test_the_last_decision_is_told_and_whether_another_one_contradicts_it() -> None:
    gathering = Gathering(100)
    gathering.add_half(_half(1))
    found = gathering.found["a"]
    gathering.add_op(_entry(OpKind.COMMIT), OpSource.PRODUCER, 2, 5, TOPIC)
    assert (found.decision, found.disputed) == (RecordedDecision(OpKind.COMMIT, OpSource.PRODUCER, 2, 5), False)
    gathering.add_op(_entry(OpKind.ROLLBACK), OpSource.CHECKER, 3, 6, TOPIC)
    assert (found.decision, found.disputed) == (RecordedDecision(OpKind.ROLLBACK, OpSource.CHECKER, 3, 6), True)


def test_what_is_parked_is_gathered_with_what_still_follows_it() -> None:
    gathering = Gathering(100)
    gathering.add_half(_half(9, position=1))
    gathering.add_manifest(_manifest("a", DiscardReason.UNDECIDED, (0, 2), (0, 5)))
    gathering.add_manifest(_manifest("b", DiscardReason.TOO_LARGE, (0, 3)))
    found = gathering.found["a"]
    assert (found.parked, found.offsets, found.checks) == (True, {0: 2, 1: 9}, 3)
    assert (set(gathering.found), [one.undecided + one.decided for one in gathering.sums.values()]) == ({"a"}, [1])


def test_gathering_counts_by_service_and_half_partition() -> None:
    gathering = Gathering(100)
    for half in (_half(4, "a"), _half(3, "b"), _half(1, "c", partition=1), _half(2, "d", service="others")):
        gathering.add_half(half)
    gathering.add_op(_entry(OpKind.COMMIT), OpSource.PRODUCER, 1, 1, TOPIC)
    gathering.add_op(_entry(OpKind.COMMIT), OpSource.CHECKER, 2, 1, TOPIC)
    assert gathering.sums == {
        ("orders", 0): ServiceSum("orders", 0, 1, 1, 1_003),
        ("orders", 1): ServiceSum("orders", 1, 1, 0, 1_001),
        ("others", 0): ServiceSum("others", 0, 1, 0, 1_002),
    }
    assert [one.id for one in gathering.oldest()] == ["c", "d", "b", "a"]
    assert gathering.since() == {0: 1_002, 1: 1_001}


def test_gathering_choice_leaves_out_others_and_younger() -> None:
    gathering = Gathering(3, Choice(None, "orders", 1_003))
    for half in (_half(1, "x", service="others"), _half(2, "a"), _half(3, "b"), _half(4, "c"), _half(9, "a", 1)):
        gathering.add_half(half)
    assert ({id_: one.offsets for id_, one in gathering.found.items()}) == {"a": {0: 2, 1: 9}, "b": {0: 3}}
    assert (sum(one.undecided for one in gathering.sums.values()), gathering.is_full(0)) == (2, True)


def test_gathering_keeps_few_in_full_and_counts_all() -> None:
    """Very many may be undecided: memory must not hold what is not listed."""
    gathering = Gathering(100, keep=2)
    for offset in range(10):
        gathering.add_half(_half(offset, f"half{offset}"))
    gathering.add_half(_half(20, "half9", position=1))
    for number in (5, 3, 4):
        gathering.add_manifest(replace(_manifest(f"p{number}", DiscardReason.UNDECIDED), first_append_time=number))
    assert [one.id for one in gathering.oldest()] == ["p3", "p4", "half0", "half1"]
    for kind in (OpKind.ROLLBACK, OpKind.COMMIT):  # a second decision counts no second time
        for id_ in ("half0", "half9", "p5"):
            gathering.add_op(_entry(kind, id_), OpSource.PRODUCER, 1, 1, TOPIC)
    assert gathering.sums == {("orders", 0): ServiceSum("orders", 0, 10, 3, 3)}
    assert gathering.found["half0"].disputed


def test_what_a_checkpoint_names_is_read_in_few_spans() -> None:
    far = 10 + NEAR + 1
    checkpoint = HalfCheckpoint(5, far + 20, (range(5, 6), range(8, 10), range(far, far + 2)))
    spans = list(unsettled_spans(Span("t", 3, 0, far + 50), checkpoint))
    places = [(span.partition, span.start, span.stop) for span, _ in spans]
    assert places == [(3, 5, 10), (3, far, far + 2), (3, far + 20, far + 50)]
    unsettled = [[at for at in range(span.start, span.stop) if is_unsettled(at)] for span, is_unsettled in spans]
    assert unsettled == [[5, 8, 9], [far, far + 1], list(range(far + 20, far + 50))]


@pytest.mark.parametrize(("text", "ms"), [("500ms", 500), ("90s", 90_000), ("2d", 172_800_000)])
def test_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "5", "1.5h", "-1s", "1w"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="not a valid duration"):
        parse_duration(text)


def test_the_largest_services_are_listed_and_the_others_counted() -> None:
    """A team can publish under as many names as it likes."""
    gathering, state = Gathering(100), ChannelState("outbox", 2_000)
    for number in range(40):
        gathering.add_half(_half(number, f"t{number}", service=f"s{number}"))
    gathering.add_half(_half(40, "more", service="s7"))
    state.take(gathering, 3)
    assert [(one.service, one.undecided) for one in state.sums] == [("s7", 2), ("s0", 1), ("s1", 1)]
    first, *_ = halves(state)
    assert first.details[-1] == "and 37 more services and half partitions: --limit"
