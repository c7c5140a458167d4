"""Which check requests are stale: broker time against broker time, and monotonic time between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox._rules.broker_clock import STALE_MS, RequestAges
from tests.support import protocol_strategies as some

APPENDED = 1_700_000_000_000


def test_request_age_of_first_record_is_zero() -> None:
    """Nothing is known of the broker's time before it."""
    assert not RequestAges().is_stale(0, 0, APPENDED, 5)
    assert not RequestAges().is_stale(0, 0, 1, 10**12)


@pytest.mark.parametrize("start", [0, 1_000, 10**12])
def test_request_age_grows_with_monotonic_time(start: int) -> None:
    ages = RequestAges()
    ages.is_stale(0, 0, APPENDED, start)
    assert not ages.is_stale(0, 1, APPENDED, start + STALE_MS)
    assert ages.is_stale(0, 2, APPENDED, start + 1 + STALE_MS)
    assert not ages.is_stale(0, 3, APPENDED + STALE_MS, start + 1 + STALE_MS)


def test_request_age_in_backlog_is_against_newest_record() -> None:
    ages = RequestAges()
    ages.note_newest(0, 10, APPENDED)
    assert ages.is_stale(0, 1, APPENDED - STALE_MS - 1, 0)
    assert not ages.is_stale(0, 2, APPENDED - STALE_MS, 0)
    assert not ages.is_stale(1, 1, APPENDED - STALE_MS - 1, 0), "another partition has a clock of its own"


def test_request_age_behind_newest_record_ignores_it() -> None:
    """A leader whose clock was an hour ahead left a record; its successor's clock is right."""
    ages = RequestAges()
    ages.note_newest(0, 10, APPENDED + 3_600_000)
    assert not ages.is_stale(0, 10, APPENDED + 3_600_000, 0)
    assert not ages.is_stale(0, 11, APPENDED, 0)
    assert not ages.is_stale(0, 12, APPENDED + 5, 5)


@some.relaxed
@given(st.lists(st.tuples(st.integers(0, STALE_MS // 30), st.integers(-3_600_000, 3_600_000)), max_size=30))
def test_request_read_as_it_is_appended_is_never_stale(steps: list[tuple[int, int]]) -> None:
    """Whatever the clocks of the brokers do, and however they take turns."""
    ages, monotonic = RequestAges(), 0
    for offset, (passed, wrong) in enumerate(steps):
        monotonic += passed
        assert not ages.is_stale(0, offset, APPENDED + monotonic + wrong, monotonic)
