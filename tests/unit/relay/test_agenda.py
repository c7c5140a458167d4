"""Who is due when, and halves that were read and are not kept: queues compared with plain lists."""

from collections import Counter
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from relay.half.state import parking
from relay.half.state.check_schedule import Agenda
from relay.half.state.parking import Deferred

ENTRIES = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcd")))


@given(ENTRIES, ENTRIES)
def test_the_earliest_comes_first_and_nobody_is_lost(
    before: list[tuple[int, str]], later: list[tuple[int, str]]
) -> None:
    agenda, inside = Agenda(), Counter(before)
    for entry in before:
        agenda.add(*entry)
    for entry in later:
        _take(agenda, inside)
        agenda.add(*entry)
        inside[entry] += 1
    while inside:
        _take(agenda, inside)
    assert agenda.first() is None


def _take(agenda: Agenda, inside: Counter[tuple[int, str]]) -> None:
    first = agenda.first()
    if not inside:
        assert first is None
        return
    assert first is not None
    assert inside[first] > 0
    assert first[0] == min(due for due, _ in inside)
    agenda.remove_first()
    inside[first] -= 1
    inside += Counter()  # what is zero leaves


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 3), st.integers(0, 2)), max_size=40))
def test_deferred_is_a_queue_for_each_service(steps: list[tuple[str, int, int]]) -> None:
    """Compared with plain lists; removed runs are dropped early, so that this is covered, too."""
    found, expected, offset = Deferred(), dict[str, list[int]](), 0
    with patch.object(parking, "_MOST_REMOVED", 2):
        for service, gap, removals in steps:
            offset += gap
            found.add(service, offset, 1_000 + offset)
            expected.setdefault(service, []).append(offset)
            for _ in range(removals):
                if service in expected:
                    found.remove_lowest(service)
                    del expected[service][0]
                    expected = {name: left for name, left in expected.items() if left}
            _compare(found, expected, offset)


def _compare(found: Deferred, expected: dict[str, list[int]], last: int) -> None:
    assert sorted(found.services()) == sorted(expected)
    assert (len(found), bool(found)) == (sum(map(len, expected.values())), bool(expected))
    every = {at for left in expected.values() for at in left}
    assert {at for at in range(last + 2) if at in found} == every
    assert found.lowest_of_all(-1) == min(every, default=-1)
    for name in ("a", "b"):
        left = expected.get(name, [])
        assert (found.holds(name), found.lowest(name, -1)) == (bool(left), left[0] if left else -1)
        if left:
            assert found.first(name, 2) == left[:2]


def test_deferred_since_is_the_oldest_services() -> None:
    found = Deferred()
    assert found.since() is None
    found.add("a", 5, 2_000)
    found.add("b", 6, 1_000)
    found.add("b", 7, 3_000)
    assert found.since() == 1_000
    found.remove_lowest("b")
    assert found.since() == 1_000
    found.remove_lowest("b")
    assert found.since() == 2_000
