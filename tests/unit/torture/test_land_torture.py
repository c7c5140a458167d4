"""The torture of `land`: each invariant finds what contradicts it; the document says what the reports say."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from spark_jobs.tables.progress import Progress
from tests.land_torture.document import SPARK, described, kept, written
from tests.land_torture.invariants import RULES, Evidence, Row, check
from tests.land_torture.points import POINTS, Kind, Point, in_turn
from tests.land_torture.run import Result

ROWS = [Row("orders", 0, offset, b"%d" % offset, f"id/{offset}") for offset in (0, 1, 4, 5)]


def batch(number: int, start: int, end: int, rows: int) -> tuple[Progress, int]:
    return Progress("land", "q", number, {"orders": {"0": start}}, {"orders": {"0": end}}, {"orders": "id"}), rows


CLEAN = Evidence(ROWS, 4, ROWS, {0: 2, 1: 2}, [batch(0, 0, 3, 2), batch(1, 3, 6, 2)])

WRONG = {
    "a reader sees what was committed": replace(CLEAN, committed=5),
    "no record is lost": replace(CLEAN, landed=ROWS[1:]),
    "no record is there twice": replace(CLEAN, landed=[*ROWS, ROWS[2]]),
    "no record is made up": replace(CLEAN, landed=[*ROWS, Row("orders", 0, 2, b"2", "id/2")]),
    "no record is changed": replace(CLEAN, landed=[*ROWS[1:], ROWS[0]._replace(digest=b"other")]),
    "batches follow each other without a gap": replace(CLEAN, commits=[batch(0, 0, 2, 2), batch(1, 3, 6, 2)]),
    "batches have the rows that their commits say": replace(CLEAN, batches={0: 3, 1: 2}),
}


def test_clean_evidence_contradicts_nothing() -> None:
    assert check(CLEAN) == []


@pytest.mark.parametrize("name", WRONG)
def test_each_invariant_finds_what_contradicts_it(name: str) -> None:
    assert [violation.invariant for violation in check(WRONG[name])] == [name]


def test_each_invariant_has_a_contradiction() -> None:
    assert set(WRONG) == set(RULES)


def test_a_batch_that_is_missing_is_a_gap() -> None:
    evidence = replace(CLEAN, commits=[batch(0, 0, 3, 2), batch(2, 3, 6, 2)], batches={0: 2, 2: 2})
    assert [violation.detail for violation in check(evidence)] == ["the commits are of the batches [0, 2]"]


def test_all_points_have_their_turn_before_one_comes_again() -> None:
    points = POINTS["delta"]
    turns = in_turn(points, random.Random(1))
    assert set(islice(turns, len(points))) == set(islice(turns, len(points))) == set(points)


def test_a_sight_is_what_was_not_there_before(tmp_path: Path) -> None:
    point = Point("batch", Kind.SIGHT, "commits", r"\d+")
    assert point.names(tmp_path) == set()
    (tmp_path / "commits").mkdir()
    for name in ("7", ".7.crc"):
        (tmp_path / "commits" / name).touch()
    assert point.names(tmp_path) == {"7"}


def report(sink: str, violations: int = 0) -> dict[str, object]:
    run = Result(sink, 7, violations=[]).report()
    run |= {"kills": 32, "kills_by_point": {"at any moment": 32}, "violations": violations}
    return {
        "date": "2026-01-01T00:00:00+00:00",
        "command": "python -m tests.land_torture",
        "commit": "abc",
        "runs": [run],
    }


def test_the_document_says_what_the_reports_say() -> None:
    text = described([report("delta"), report("delta", 1)])
    assert "| 32 | 32 |" in text
    assert "| **0** | **1** |" in text
    assert "`python -m tests.land_torture`" in text


def test_the_document_is_made_of_the_reports_that_are_kept() -> None:
    assert written(SPARK.read_text(), kept()) == SPARK.read_text()
