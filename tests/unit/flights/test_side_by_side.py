"""The figures of the modes beside each other."""

from collections import Counter
from dataclasses import replace

import pytest

from examples.flights.kafka_outage import Span
from examples.flights.modes import Mode
from examples.flights.reconcile import Reconciliation
from examples.flights.side_by_side import Activity, Messages, Rates, figures_of, rates_of
from outbox.testing import VisibleRecord

OUTAGE = Span(start=1_000.0, stop=1_010.0, back=1_014.0)


def _record(service: str, origin: str) -> VisibleRecord:
    headers = (("outbox-service", service.encode()), ("outbox-origin", origin.encode()))
    return VisibleRecord("flights.departures", 0, 0, None, None, headers, 0)


def _every(seconds: float, start: float, stop: float) -> list[float]:
    return [start + seconds * number for number in range(round((stop - start) / seconds))]


def test_rates_are_of_the_seconds_around_the_outage() -> None:
    times = [*_every(0.5, 900, 1_000), *_every(1, 1_000, 1_010), 1_012, *_every(0.25, 1_014, 1_100)]
    assert rates_of(times, OUTAGE) == Rates(before=2.0, during=1.0, after=4.0, pause=3.0)


def test_rates_of_a_mode_that_waits_have_its_pause() -> None:
    found = rates_of([*_every(0.5, 990, 1_000), *_every(0.5, 1_016, 1_030)], OUTAGE)
    assert (found.before, found.during, found.after) == (2.0, 0.0, 1.6)
    assert found.pause == pytest.approx(16.5)


def test_figures_count_only_what_belongs_to_the_mode() -> None:
    told = ["table/a/0", "table/a/1", "table/b/0", "half/c/0"]
    ways = Counter({(Mode.TABLE.service, False): 2, (Mode.TABLE.service, True): 1, (Mode.HALF.service, False): 1})
    places = [Reconciliation(lost=["table/a/0"], doubled=["half/c/0"]), Reconciliation(phantom=["table/e/0", "x"])]
    activity = Activity(3, [], Counter(PublishFailed=2), 7)
    found = figures_of(Mode.TABLE, 9, activity, Messages(told, ways, places), None)
    assert (found.committed, found.rolled_back, found.killed, found.refused) == (9, 3, 7, {"PublishFailed": 2})
    assert (found.told, found.halves, found.rows, found.wrong) == (3, 2, 1, 2)
    assert found.rates is None
    assert not found.stalled


@pytest.mark.parametrize(
    ("during", "after", "stalled"), [(5.0, 5.0, False), (0.0, 5.0, True), (0.0, 0.0, False), (0.1, 0.0, False)]
)
def test_mode_with_work_left_stalled_if_nothing_committed(during: float, after: float, *, stalled: bool) -> None:
    figures = figures_of(Mode.TABLE, 0, Activity(), Messages([], Counter(), []), None)
    assert replace(figures, rates=Rates(5.0, during, after, 0.0)).stalled is stalled
