"""When a batch leaves: full, old, or at once while nobody else is expected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.delivery.rules.volume import BatchPolicy
from relay.half.ledger.deliveries import BATCH_AGE_MS, Pacing, Ready

POLICY = BatchPolicy(messages=1_000, bytes=1_000_000)
FLOOD = 30
"""Messages a millisecond."""


def paced(left_at: int = 100) -> Pacing:
    pacing = Pacing(POLICY)
    assert pacing.leaves(Ready(1_000, 0), left_at)
    return pacing


def test_a_lone_message_leaves_at_once() -> None:
    pacing = paced()
    for now in (101, 150, 10_000):
        assert pacing.leaves(Ready(1, 500), now)
        assert pacing.wait(now) is None


def test_a_flood_is_batched_until_the_first_message_is_too_old() -> None:
    pacing = paced()
    for now in range(101, 111):
        assert not pacing.leaves(Ready(FLOOD * (now - 100), 0), now)
        assert pacing.wait(now) == 111 - now
    assert pacing.leaves(Ready(FLOOD * 11, 0), 111)
    assert pacing.wait(111) is None


@pytest.mark.parametrize("ready", [Ready(1_000, 0), Ready(400, 1_000_000)])
def test_a_full_batch_leaves(ready: Ready) -> None:
    assert paced().leaves(ready, 101)


def test_a_flood_that_ends_waits_for_nobody() -> None:
    pacing = paced()
    assert not pacing.leaves(Ready(FLOOD, 0), 101)
    assert pacing.leaves(Ready(FLOOD, 0), 106)


def test_what_else_there_is_to_write_does_not_wait() -> None:
    pacing = paced()
    assert not pacing.leaves(Ready(FLOOD, 0), 101)
    assert pacing.leaves(Ready(0, 0), 102)
    assert pacing.wait(102) is None


def test_after_a_batch_the_next_one_rests_unless_it_is_full() -> None:
    pacing = paced()
    pacing.written(102, rest=4)
    for now in range(102, 106):
        assert not pacing.leaves(Ready(1, 500), now)
        assert pacing.wait(now) == 106 - now
    assert pacing.leaves(Ready(1, 500), 106)
    pacing.written(108, rest=4)
    assert pacing.leaves(Ready(1_000, 0), 109)


def test_a_rest_does_not_shorten_the_wait_for_a_flood() -> None:
    pacing = paced()
    pacing.written(101, rest=2)
    assert not pacing.leaves(Ready(FLOOD, 0), 101)
    assert not pacing.leaves(Ready(FLOOD * 3, 0), 103)
    assert pacing.wait(103) == 8


def test_no_age_no_wait() -> None:
    pacing = Pacing(BatchPolicy(), age=0)
    assert pacing.leaves(Ready(1_000, 0), 100)
    assert pacing.leaves(Ready(FLOOD, 0), 100)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300)), max_size=60))
def test_nothing_waits_longer_than_the_age_however_the_others_come(arrivals: list[tuple[int, int]]) -> None:
    """A maximum age, not a debounce: later messages do not prolong the wait."""
    pacing, now, ready, first = paced(), 100, 0, None
    for pause, more in arrivals:
        for _ in range(max(pause, 1)):
            now += 1
            if ready and first is not None and pacing.leaves(Ready(ready, 0), now):
                assert now - first <= BATCH_AGE_MS
                ready, first = 0, None
        if more and first is None:
            first = now
        ready += more
        if ready and pacing.leaves(Ready(ready, 0), now):
            ready, first = 0, None
        assert first is None or now - first < BATCH_AGE_MS
