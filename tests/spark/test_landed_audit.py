"""The table of land beside Kafka: each difference is found by its offset, and nothing else is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.auditing.comparison import Comparison
from spark_jobs.auditing.landed import LandedTable
from spark_jobs.landing import gaps
from spark_jobs.runtime.spans import Gap
from spark_jobs.tables.delta_output import Output
from tests.support.landing import Landing
from tests.support.spark import NOON, Record, records, session

GIVEN = [
    Record(0, None),
    Record(1, [("a", b"1"), ("a", None), ("b", b"")], value=b""),
    Record(2, [("outbox-id", b"x")], key=None, value=None),
]


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Landing:
    made = Landing(tmp_path_factory.mktemp("landed"))
    made.plan(0, 3)
    made.land(0, *GIVEN)
    made.commit(0)
    gaps.accept(made.new_pair(), (Gap("orders", 0, 3, 9),), made.topics)
    return made


def compared(landing: Landing, *kafka: Record) -> list[Comparison]:
    table = LandedTable(Output(session(), str(landing.table)), lambda _: records(*kafka))
    return table.compare({"orders": {0: (0, 10), 1: (0, 0)}})


def test_the_same_records_are_equal_and_an_accepted_gap_is_no_difference(landing: Landing) -> None:
    in_the_gap = Record(5)
    assert compared(landing, *GIVEN[::-1], in_the_gap) == [Comparison("orders", 0, 3, 3, differs=False)]


CHANGES = {
    "gone from the table": (3, Record(10)),
    "another value": (1, replace(GIVEN[1], value=b"x")),
    "no value": (1, replace(GIVEN[1], value=None)),
    "another key": (2, replace(GIVEN[2], key=b"")),
    "other headers": (1, replace(GIVEN[1], headers=[("a", None), ("a", b"1"), ("b", b"")])),
    "a header of the outbox": (2, replace(GIVEN[2], headers=[("outbox-id", b"y")])),
    "another time": (0, replace(GIVEN[0], timestamp=NOON.replace(hour=13))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_found_by_its_offset(landing: Landing, change: str) -> None:
    place, record = CHANGES[change]
    kafka = [*GIVEN]
    kafka[place : place + 1] = [record]
    assert compared(landing, *kafka) == [
        Comparison("orders", 0, len(kafka), 3, differs=True, offsets=(record.offset,)),
    ]


def test_one_that_is_there_twice_in_place_of_another_is_found(landing: Landing) -> None:
    """The numbers are the same."""
    [found] = compared(landing, GIVEN[0], GIVEN[0], GIVEN[2])
    assert (found.expected, found.found, found.differs, found.offsets) == (3, 3, True, (0, 1))
