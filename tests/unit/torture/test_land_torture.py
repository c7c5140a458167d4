"""The torture of `land`: each invariant finds what contradicts it; the document says what the reports say."""

import random
from dataclasses import replace
from itertools import islice

import pytest

from spark_jobs.tables.progress import Progress
from tests.land_torture.document import SPARK, kept, written
from tests.land_torture.invariants import Evidence, Row, check
from tests.land_torture.points import POINTS, in_turn

ROWS = [Row("orders", 0, offset, b"%d" % offset, f"id/{offset}") for offset in (0, 1, 4, 5)]


def batch(number: int, start: int, end: int, rows: int) -> tuple[Progress, int]:
    return Progress("q", number, {"orders": {"0": start}}, {"orders": {"0": end}}, {"orders": "id"}), rows


STATE = {("orders", b"k"): (0, 5)}
CLEAN = Evidence(ROWS, 4, ROWS, {0: 2, 1: 2}, [batch(0, 0, 3, 2), batch(1, 3, 6, 2)], STATE, STATE)

WRONG = {
    "a reader sees what was committed": replace(CLEAN, committed=5),
    "no record is lost": replace(CLEAN, landed=ROWS[1:]),
    "no record is there twice": replace(CLEAN, landed=[*ROWS, ROWS[2]]),
    "no record is made up": replace(CLEAN, landed=[*ROWS, Row("orders", 0, 2, b"2", "id/2")]),
    "no record is changed": replace(CLEAN, landed=[*ROWS[1:], ROWS[0]._replace(digest=b"other")]),
    "batches follow each other without a gap": replace(CLEAN, commits=[batch(0, 0, 2, 2), batch(1, 3, 6, 2)]),
    "the current state is the fold of its topics": replace(CLEAN, current={("orders", b"k"): (0, 4)}),
    "batches have the rows that their commits say": replace(CLEAN, batches={0: 3, 1: 2}),
}


def test_clean_evidence_contradicts_nothing() -> None:
    assert check(CLEAN) == []


@pytest.mark.parametrize("name", WRONG)
def test_each_invariant_finds_what_contradicts_it(name: str) -> None:
    assert [violation.invariant for violation in check(WRONG[name])] == [name]


def test_all_points_have_their_turn_before_one_comes_again() -> None:
    points = POINTS["delta"]
    turns = in_turn(points, random.Random(1))
    assert set(islice(turns, len(points))) == set(islice(turns, len(points))) == set(points)


def test_the_document_is_made_of_the_reports_that_are_kept() -> None:
    assert written(SPARK.read_text(), kept()) == SPARK.read_text()
