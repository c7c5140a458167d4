"""Positions: which messages of a transaction count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol.errors import ProtocolError
from outbox.protocol.positions import MAX_POSITION, Positions
from tests.support import protocol_strategies as some


@some.relaxed
@given(st.sets(st.integers(0, MAX_POSITION) | st.integers(0, 12), max_size=40))
def test_positions_are_a_set_of_numbers(numbers: set[int]) -> None:
    positions = Positions.of([*numbers, *numbers])
    assert list(positions) == sorted(numbers)
    assert len(positions) == len(numbers)
    assert all((number in positions) == (number in numbers) for number in range(-1, 15))
    assert Positions.parse(str(positions)) == positions


@some.relaxed
@given(st.text(max_size=20) | st.text("0123456789,-", max_size=20))
def test_a_set_is_written_in_one_way_only(text: str) -> None:
    try:
        positions = Positions.parse(text)
    except ProtocolError:
        return
    assert str(positions) == text
    assert Positions.of(positions) == positions


RUNS = ["--", "-1", "1-", "1,", ",1", "1,,2", "2,1", "1,2", "0-2,3", "0-2,2", "3-1", "5-5", "00", "01-2", "0-02"]
NUMBERS = ["+1", "٣", "²", "1_0", "10000", "0-10000", " 1", "1 ", "1\n", "9" * 5_000]


@pytest.mark.parametrize("text", ["", *RUNS, *NUMBERS])
def test_a_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        Positions.parse(text)


def test_nothing_counts_is_written_as_a_dash() -> None:
    assert str(Positions.of([])) == "-"
    assert Positions.parse("-") == Positions.first(0) == Positions.of([])
    assert not list(Positions.parse("-"))


def test_first_counts_from_zero() -> None:
    assert Positions.first(3) == Positions.of([0, 1, 2])
    assert str(Positions.first(1)) == "0"
    assert str(Positions.first(10_000)) == "0-9999"


def test_only_whole_numbers_are_in_it() -> None:
    assert "0" not in Positions.first(3)
    assert None not in Positions.first(3)
