"""The first checkpoint of a half partition that was written to before it had one (R84)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outbox._rules.repairs import StoredHalf, first_checkpoint
from outbox.protocol.checkpoint import HalfCheckpoint, parse_half_checkpoint

TOPIC_ID = "019aaa3c-6d1c-7aaa-8aaa-0123456789ab"


def _halves(*transactions: str) -> list[StoredHalf]:
    return [StoredHalf(offset, transaction) for offset, transaction in enumerate(transactions)]


def test_a_partition_of_which_nothing_was_delivered_begins_at_its_beginning() -> None:
    assert first_checkpoint(_halves("a", "b", ""), {"c"}) == HalfCheckpoint(0, 0)
    assert first_checkpoint([], ()) == HalfCheckpoint(0, 0)


def test_a_partition_of_which_all_was_delivered_ends_at_its_last_half() -> None:
    assert first_checkpoint(_halves("a", "b", "a"), {"a", "b"}) == HalfCheckpoint(3, 3)


def test_each_half_of_a_delivered_transaction_is_settled_and_no_other() -> None:
    found = first_checkpoint(_halves("a", "b", "", "a", "c"), {"a"})
    assert found == HalfCheckpoint(1, 4, (range(1, 3),))


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abcd")), max_size=60), st.sets(st.sampled_from("abcd")))
def test_exactly_what_was_not_delivered_is_owed(placed: list[tuple[int, str]], delivered: set[str]) -> None:
    """Control records take offsets, too, between the halves."""
    halves, offset = [], -1
    for step, transaction in placed:
        offset += step
        halves.append(StoredHalf(offset, transaction))
    found = first_checkpoint(halves, delivered)
    assert [found.owes(half.offset) for half in halves] == [half.transaction_id not in delivered for half in halves]
    assert found.owes(offset + 1)
    assert parse_half_checkpoint(found.encode(TOPIC_ID, 3), found.offset, TOPIC_ID, 3) == found
