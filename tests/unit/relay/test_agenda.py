"""Who is due when: each comes out as often as it went in, the earliest first, whatever comes in between."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from relay.half.state.check_schedule import Agenda

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


def test_those_of_one_time_come_in_the_order_of_their_arrival() -> None:
    agenda, came = Agenda(), []
    for id_ in "cab":
        agenda.add(7, id_)
    for _ in range(4):
        first = agenda.first()
        assert first is not None
        came.append(first[1])
        agenda.remove_first()
        if len(came) == 1:
            agenda.add(7, "late")
    assert came == ["c", "a", "b", "late"]


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
