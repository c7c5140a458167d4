"""Which mode publishes which flights, and by which ids their messages are found again."""

import json
from dataclasses import replace
from itertools import count

import pytest

from examples.flights import application
from examples.flights.application import DELAYS, DEPARTURES, ID_HEADER
from examples.flights.modes import Mode, message_id, mode_of, mode_of_message, part_of
from examples.flights.plan import Flight, PlannedTransaction, make_plan


def _flight(*, delay: int | None = 0) -> Flight:
    return Flight(7, "N14228", "UA", "1545", "EWR", "IAH", "2013-01-01T10:00:00Z", delay)


def test_all_flights_of_an_aircraft_belong_to_one_mode() -> None:
    modes: dict[str | None, set[Mode]] = {}
    for transaction in make_plan(3_000):
        modes.setdefault(transaction.flights[0].tail_number, set()).add(mode_of(transaction))
    modes.pop(None, None)
    assert {len(found) for found in modes.values()} == {1}


def test_flights_without_aircraft_are_in_all_modes() -> None:
    flight = replace(_flight(), tail_number=None)
    assert {mode_of(PlannedTransaction(number, (flight,))) for number in range(20)} == set(Mode)


def test_each_transaction_belongs_to_one_part() -> None:
    plan = make_plan(3_000)
    parts = [part_of(plan, mode) for mode in Mode]
    numbers = sorted(transaction.number for part in parts for transaction in part)
    assert numbers == list(range(len(plan)))
    assert all(len(part) > len(plan) / 5 for part in parts)


def test_id_of_a_message_names_its_mode() -> None:
    ids = [message_id(mode, attempt, number) for mode in Mode for attempt in "ab" for number in range(2)]
    assert len(set(ids)) == len(ids)
    assert [mode_of_message(id_) for id_ in ids] == [mode for mode in Mode for _ in range(4)]


@pytest.mark.parametrize("id_", ["", "tx1/0", "halfway/a/0"])
def test_strange_id_names_no_mode(id_: str) -> None:
    assert mode_of_message(id_) is None


@pytest.mark.parametrize(("delay", "topics"), [(None, [DEPARTURES]), (0, [DEPARTURES]), (45, [DEPARTURES, DELAYS])])
def test_messages_of_a_flight_have_own_ids(delay: int | None, topics: list[str]) -> None:
    ids = (message_id(Mode.TABLE, "attempt", number) for number in count())
    messages = list(application._messages(_flight(delay=delay), 3, ids))
    assert [message.topic for _, message in messages] == topics
    assert [id_ for id_, _ in messages] == [f"table/attempt/{number}" for number in range(len(topics))]
    for id_, message in messages:
        assert dict(message.header_list())[ID_HEADER] == id_.encode()
        assert json.loads(message.value_bytes() or b"")["departure"] == 3
        assert message.key_bytes() == b"N14228"
