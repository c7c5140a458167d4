"""Which folders count once some are compacted: each row once, whatever died and whoever ran at once."""

from __future__ import annotations

from datetime import date

import pytest

from spark_jobs.runtime.errors import OutputError
from spark_jobs.tables.compaction import Compaction, due, live_folders, origin
from spark_jobs.tables.layout import TableDay
from spark_jobs.tables.manifest import Manifest, PartitionRows

DAY = "2026-11-20"
UNIT = TableDay("records", "orders", DAY)


def batch(batch_id: int, *days: str) -> Manifest:
    parts = tuple(PartitionRows("orders", 0, day, 1, 0, 0, 1, 0, "0" * 16) for day in days or (DAY,))
    return Manifest("land", "query", batch_id, {}, {}, {}, parts)


def compaction(number: int, *replaces: int) -> Compaction:
    return Compaction(number, UNIT, replaces, len(replaces), "0" * 16)


BATCHES = [batch(0), batch(1), batch(2)]


def test_a_compaction_stands_for_what_it_replaces() -> None:
    assert live_folders(BATCHES, [])[UNIT] == (0, 1, 2)
    assert live_folders(BATCHES, [compaction(1, 0, 1)])[UNIT] == (-1, 2)
    assert live_folders(BATCHES, [compaction(2, -1, 2), compaction(1, 0, 1)])[UNIT] == (-2,)


def test_other_days_stay_as_they_are() -> None:
    other = TableDay("records", "orders", "2026-11-21")
    folders = live_folders([batch(0, DAY, other.day), batch(1)], [compaction(1, 0, 1)])
    assert folders == {UNIT: (-1,), other: (0,)}


@pytest.mark.parametrize("second", [(0, 1), (1, 2), (0, 1, 2)])
def test_of_two_compactions_of_the_same_folders_the_first_counts(second: tuple[int, ...]) -> None:
    assert live_folders(BATCHES, [compaction(2, *second), compaction(1, 0, 1)])[UNIT] == (-1, 2)


def test_a_compaction_of_batches_that_are_not_seen_yet_waits() -> None:
    assert live_folders(BATCHES[:2], [compaction(1, 0, 1, 2)])[UNIT] == (0, 1)


def test_what_is_in_a_compaction_of_compactions() -> None:
    known = {each.number: each for each in (compaction(1, 0, 1), compaction(2, -1, 2))}
    assert origin(-2, known) == {0, 1, 2}
    assert origin(2, known) == {2}


def test_closed_days_of_many_folders_are_due() -> None:
    folders = live_folders([batch(0, DAY, "2026-11-19"), batch(1, DAY, "2026-11-21"), batch(2, "2026-11-21")], [])
    assert due(folders, date(2026, 11, 21), 2) == {UNIT: (0, 1)}
    assert due(folders, date(2026, 11, 20), 2) == {}
    assert len(due(folders, date(2026, 11, 22), 1)) == 3


def test_a_compaction_is_read_as_it_was_written() -> None:
    made = compaction(3, -1, 7)
    assert Compaction.parse(made.encode()) == made
    assert made.batch_id == -3


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": 1, "unit": 3}'])
def test_what_is_no_compaction_is_refused(text: str) -> None:
    with pytest.raises(OutputError, match="cannot be read"):
        Compaction.parse(text)


def test_a_compaction_of_a_newer_format_is_refused() -> None:
    with pytest.raises(OutputError, match="Upgrade"):
        Compaction.parse('{"format": 2}')
