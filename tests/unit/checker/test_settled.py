"""Which rows may go, and which wait for too long: decided on what Kafka said; and what an op record rolls back."""

import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checker.rules.settlement import (
    FIRST_ID,
    LAST_ID,
    Ages,
    ChannelProgress,
    CommittedRow,
    Delay,
    HalfPartition,
    Old,
    between,
    first_id_of,
    old_enough,
    settled_below,
    why_undelivered,
)
from checker.upkeep.delivery_progress import rolled_back
from outbox.protocol.checkpoint import HalfCheckpoint, runs_of
from outbox.protocol.identifiers import created_ms, make_transaction_id
from outbox.protocol.op import OpSource, encode_op
from tests.support.ledger_model import TOPIC_ID, transaction_id
from tests.unit.relay.test_ledger import commit, rollback

TOPIC, OTHER = (str(uuid.UUID(int=number)) for number in (1, 2))
ID = make_transaction_id(1_700_000_000_000, bytes(range(10)))


def progress(
    checkpoint: HalfCheckpoint | None, *, start: int = 0, end: int = 1_000, problem: str = ""
) -> ChannelProgress:
    """Return a one-partition channel with one transaction and one malformed half in the discard topic."""
    discarded, malformed = {"discarded": "TOO_LARGE"}, {(0, 50)}
    return ChannelProgress(TOPIC, {0: HalfPartition(start, end, checkpoint, problem)}, discarded, malformed)


def row(first: int, last: int, *, id_: str = ID, topic: str = TOPIC, partition: int = 0) -> CommittedRow:
    return CommittedRow(id_, "orders", topic, partition, first, last)


CHECKPOINT = HalfCheckpoint(100, 200, (range(100, 110), range(150, 151)))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        *((row(*span), None) for span in ((0, 99), (110, 149), (151, 199), (-1, -1))),
        *((row(*span), Delay.PENDING) for span in ((99, 100), (109, 110), (150, 150))),
        *((row(*span), Delay.UNREAD) for span in ((199, 200), (200, 200), (999, 999))),
        (row(1_000, 1_000), Delay.GONE),
        (row(0, 0, topic=OTHER), Delay.DELETED_TOPIC),
        (row(0, 0, partition=1), Delay.UNKNOWN),
        *((row(*span), Delay.DISCARDED) for span in ((50, 50), (40, 50), (50, 60))),
        *((row(at, at, id_="discarded"), Delay.DISCARDED) for at in (0, 500)),
    ],
)
def test_why_a_committed_transaction_is_not_delivered(found: CommittedRow, expected: Delay | None) -> None:
    assert why_undelivered(found, progress(CHECKPOINT)) is expected


def test_halves_that_are_gone_count_only_while_they_are_not_settled() -> None:
    cut = progress(CHECKPOINT, start=160)
    assert why_undelivered(row(150, 150), cut) is Delay.GONE
    assert why_undelivered(row(151, 151), cut) is None
    assert why_undelivered(row(10, 10), cut) is None


def test_without_a_checkpoint_nothing_is_known_and_nothing_may_go() -> None:
    blind = progress(None, problem="half/0 has no checkpoint")
    assert why_undelivered(row(0, 0), blind) is Delay.UNKNOWN
    assert settled_below(blind) == {}
    assert blind.problems == ["half/0 has no checkpoint"]


def test_a_partition_whose_discard_topic_is_held_back_keeps_its_rows() -> None:
    assert settled_below(progress(CHECKPOINT, problem="held back")) == {}
    assert settled_below(progress(CHECKPOINT)) == {0: 100}


@given(st.sets(st.integers(100, 199)), st.integers(100, 205))
def test_a_half_is_settled_exactly_if_the_string_says_so(unsettled: set[int], offset: int) -> None:
    """The runs of a string against the offsets that they stand for."""
    lowest = min(unsettled, default=200)
    checkpoint = HalfCheckpoint(lowest, 200, runs_of(sorted(unsettled)))
    settled = offset < 200 and offset not in unsettled
    assert (why_undelivered(row(offset, offset), progress(checkpoint)) is None) == settled


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_ids_are_before_the_first_id_of_a_later_moment_only(made: int, moment: int, random: bytes) -> None:
    id_ = make_transaction_id(made, random)
    assert (id_ < first_id_of(moment)) == (made < moment)
    assert created_ms(id_) == made
    assert FIRST_ID < id_ < LAST_ID


def test_the_time_before_the_first_id_has_none() -> None:
    assert first_id_of(-1) == first_id_of(0)


def test_rows_are_old_by_both_clocks() -> None:
    old = old_enough(1_000_000, Ages(settled=1_000, rollback_rows=5_000, undelivered=100))
    assert old == Old(999_000, 995_000, 999_900, first_id_of(999_000))
    assert old_enough(1_000_000, Ages(settled=5_000, rollback_rows=1_000, undelivered=100)).before == old.before


@given(st.lists(st.integers(0, 30), unique=True), st.integers(0, 30), st.integers(0, 30))
def test_the_ids_of_a_page(numbers: Sequence[int], after: int, to: int) -> None:
    ordered = sorted(f"{number:02}" for number in numbers)
    assert list(between(ordered, f"{after:02}", f"{to:02}")) == [
        f"{number:02}" for number in sorted(numbers) if after < number <= to
    ]


CHECKERS = [("outbox-op", b"1;checker")]


def test_rolled_back_finds_rollbacks_among_other_entries() -> None:
    entries = [commit(1, 0), rollback(2, 1), commit(3, 2), rollback(4, 3)]
    value, _ = encode_op(entries, OpSource.CHECKER)
    found = rolled_back(value, CHECKERS, verdict=True)
    assert [entry.transaction_id for entry in found] == [transaction_id(2), transaction_id(4)]


def test_rolled_back_by_a_checker_in_the_op_topic_is_not_found() -> None:
    value, _ = encode_op([rollback(2, 1)], OpSource.CHECKER)
    assert not rolled_back(value, CHECKERS, verdict=False)


@pytest.mark.parametrize("value", [b"", b"R ", b"R x y", b"\xff R ", f"R not-an-id {TOPIC_ID} 0".encode()])
def test_rolled_back_of_a_malformed_record_is_empty(value: bytes) -> None:
    assert not rolled_back(value, CHECKERS, verdict=True)
