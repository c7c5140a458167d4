"""Accepted gaps: recorded in the table first, then in Spark's checkpoint, whatever dies between."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_jobs.landing import gaps
from spark_jobs.landing.metrics import Figures
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.spans import Gap
from spark_jobs.tables.query_checkpoint import Checkpoint
from tests.support.landing import Landing, killed_at, span
from tests.support.spark import Record, session

IDS = {"orders": "id-of-orders", "stock": "id-of-stock"}
LOST = (Gap("orders", 0, 3, 9),)


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landed")
    made = Landing(folder, topics=IDS)
    made.plan(0, 3, stock=2)
    made.land(0, *span(0, 2), Record(0, topic="stock"), Record(1, topic="stock"))
    made.commit(0)
    return folder


@pytest.fixture
def landing(landed: Path, tmp_path: Path) -> Landing:
    return Landing.copied(landed, tmp_path, IDS)


def checkpoint_of(landing: Landing) -> Checkpoint:
    return Checkpoint(Folder(session(), str(landing.checkpoint)))


def accept(landing: Landing) -> None:
    gaps.accept(landing.new_pair(), LOST, IDS)


def test_accepted_gap_moves_the_next_batch_behind_it(landing: Landing) -> None:
    before = landing.progress()
    accept(landing)
    found = landing.progress()
    assert (found.start, found.end) == (before.end, {"orders": {"0": 10}, "stock": {"0": 2}})
    assert (found.batch_id, found.gaps, found.by_operator) == (1, LOST, True)
    checkpoint = checkpoint_of(landing)
    assert (checkpoint.last_commit(), checkpoint.end(1)) == (1, found.end)
    landing.restart()
    landing.plan(2, 12, stock=2)
    landing.land(2, *span(10, 11))
    after = landing.progress()
    assert (after.start, after.gaps, after.by_operator) == (found.end, LOST, False)
    assert [offset for topic, _, offset in landing.places() if topic == "orders"] == [0, 1, 2, 10, 11]


@pytest.mark.parametrize("planned", [False, True])
def test_gap_whose_writer_was_killed_is_caught_up(landing: Landing, *, planned: bool) -> None:
    """A batch that Spark planned before the loss is planned again behind the gap."""
    if planned:
        landing.plan(1, 12, stock=4)
    with killed_at("land.gap_recorded"):
        accept(landing)
    checkpoint = checkpoint_of(landing)
    assert checkpoint.last_commit() == 0
    landing.new_pair().catch_up()
    assert (checkpoint.last_commit(), checkpoint.end(1)) == (1, landing.progress().end)
    before = [path.read_bytes() for path in sorted(landing.checkpoint.rglob("*")) if path.is_file()]
    landing.new_pair().catch_up()
    assert [path.read_bytes() for path in sorted(landing.checkpoint.rglob("*")) if path.is_file()] == before


def test_checkpoint_of_another_query_is_not_caught_up(landing: Landing) -> None:
    accept(landing)
    for name in ("offsets/1", "commits/1"):
        (landing.checkpoint / name).unlink()
    (landing.checkpoint / "metadata").write_text('{"id":"query-2"}')
    landing.new_pair().catch_up()
    assert checkpoint_of(landing).planned(1) is None


def test_gap_before_the_first_batch_is_accepted(tmp_path: Path) -> None:
    """The first batch wrote files and failed before its commit: Delta has made the folder of its log by then."""
    made = Landing(tmp_path)
    made.plan(0, 3)
    (made.table / "records" / "_delta_log" / "_staged_commits").mkdir(parents=True)
    (made.table / "records" / "topic=orders").mkdir()
    made.restart()
    made.writer.finish()
    gaps.accept(made.pair, (Gap("orders", 0, 0, 0),), made.topics)
    checkpoint = checkpoint_of(made)
    assert (made.places(), checkpoint.last_commit(), checkpoint.end(0)) == ([], 0, {"orders": {"0": 1}})
    made.restart()
    made.plan(1, 3)
    made.land(1, *span(1, 2))
    assert made.places() == [("orders", 0, 1), ("orders", 0, 2)]


def test_batch_that_was_killed_is_completed_before_a_gap(landing: Landing) -> None:
    """Its rows are landed, so the gap begins behind them."""
    landing.plan(1, 5, stock=2)
    with killed_at("land.records_written"):
        landing.land(1, *span(3, 4))
    landing.restart()
    landing.writer.finish()
    lost = (Gap("orders", 0, 5, 9),)
    gaps.accept(landing.pair, lost, IDS)
    assert [offset for topic, _, offset in landing.places() if topic == "orders"] == [0, 1, 2, 3, 4]
    assert (landing.progress().batch_id, landing.progress().gaps) == (2, lost)
    assert checkpoint_of(landing).end(2) == {"orders": {"0": 10}, "stock": {"0": 2}}


def test_metrics_of_land_go_on_from_the_file(tmp_path: Path) -> None:
    file, told = tmp_path / "land.prom", (*LOST, Gap("orders", 1, 0, 0))
    Figures(file, "/out", ["orders", "stock"]).write(told, {"orders": 5, "stock": 0}, batches=1, rows=3, malformed=1)
    first = figures(file)
    again = Figures(file, "/out", ["orders", "stock"])
    again.write(told, {"orders": 5, "stock": 0})
    assert figures(file) == first
    counted: dict[tuple[str, ...], float] = {
        ("accepted_gap_offsets_total", "/out", "orders"): 8,
        ("accepted_gap_offsets_total", "/out", "stock"): 0,
    }
    counted |= {("lag", "/out", "orders"): 5, ("lag", "/out", "stock"): 0}
    counted |= {("rows_total", "/out", "landed"): 3, ("rows_total", "/out", "malformed"): 1}
    assert first == {**counted, PROGRESS: first[PROGRESS]}
    again.write(told, {"orders": 0, "stock": 0})
    assert figures(file)[PROGRESS] > first[PROGRESS]


PROGRESS = ("progress_seconds", "/out")


def figures(file: Path) -> dict[tuple[str, ...], float]:
    families = list(text_string_to_metric_families(file.read_text()))
    samples = [one for family in families for one in family.samples if not one.name.endswith("_created")]
    return {(one.name.removeprefix("outbox_land_"), *sorted(one.labels.values())): one.value for one in samples}
