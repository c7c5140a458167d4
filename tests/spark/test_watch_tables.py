"""The tables of `watch`: a batch counts once, from its manifest on; snapshots and old batches go."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.watching.frames.events import EVENTS
from spark_jobs.watching.frames.per_minute import MINUTES
from spark_jobs.watching.frames.step import CountedBatch
from spark_jobs.watching.state_tables import KNOWN, RECENT, TABLES, WatchTables, read_minutes, read_watch
from tests.support.spark import session

MINUTE = datetime(2026, 11, 22, 5, tzinfo=UTC)


class Output:
    """An output, written to by one run after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "figures"
        self.restart()

    def restart(self, keep: int = 0) -> CountedBatch | None:
        """A new run; the last batch that counts."""
        self.tables = WatchTables(session(), Folder(session(), str(self.folder)))
        return self.tables.prepare(keep)

    def write(self, number: int, halves: int, *, manifest: bool = True, keep: int = 0) -> None:
        """A batch with one row of figures."""
        row: tuple[object, ...] = (MINUTE, "shop", "orders", halves, 0, 0, 0, 0, 0, {}, None, None, None)
        frames = {name: session().createDataFrame([], form).coalesce(1) for name, form in TABLES.items()}
        frames["minutes"] = session().createDataFrame([row], MINUTES).coalesce(1)
        frames |= {KNOWN: session().createDataFrame([], EVENTS).coalesce(1), RECENT: frames["minutes"]}
        for name, frame in frames.items():
            self.tables.write(name, number, frame)
        self.tables.publish(CountedBatch(number, 0, {}, {}), keep)
        if not manifest:
            (self.folder / "_manifests" / f"{number}.json").unlink()

    def halves(self) -> int:
        """What the figures add up to."""
        return sum(row.halves for row in read_minutes(session(), str(self.folder)).collect())

    def batches(self, table: str) -> set[str]:
        """The batches that a table has."""
        return {path.name.removeprefix("batch_id=") for path in (self.folder / table).glob("batch_id=*")}


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path)


@pytest.mark.long
def test_a_batch_counts_from_its_manifest_on_and_is_replaced_without_one(output: Output) -> None:
    assert output.restart() is None
    assert output.halves() == 0
    output.write(0, 5)
    output.write(1, 3, manifest=False)
    assert output.halves() == 5
    last = output.restart()
    assert last is not None
    assert last.number == 0
    output.write(1, 4)
    assert output.halves() == 9
    [row] = read_minutes(session(), str(output.folder)).collect()
    assert (row.minute.replace(tzinfo=UTC), row.producer_group, row.topic) == (MINUTE, "shop", "orders")


def test_a_second_job_is_refused_when_it_would_write_a_batch_that_is_there(output: Output) -> None:
    other = WatchTables(session(), Folder(session(), str(output.folder)))
    output.write(0, 5)
    with pytest.raises(OutputError, match="Another job writes to"):
        other.publish(CountedBatch(0, 0, {}, {}), 0)
    assert output.halves() == 5


@pytest.mark.long
def test_snapshots_of_two_batches_and_tables_of_some_stay(output: Output) -> None:
    for number in range(4):
        output.write(number, 1, keep=3)
    assert output.batches(KNOWN) == output.batches(RECENT) == {"2", "3"}
    assert output.batches("minutes") == output.batches("waiting") == {"1", "2", "3"}
    assert output.halves() == 3
    assert {row.batch_id for row in read_watch(session(), str(output.folder), "minutes").collect()} == {1, 2, 3}
    assert output.tables.snapshot(KNOWN, CountedBatch(3, 0, {}, {})).count() == 0


@pytest.mark.long
def test_what_a_killed_run_was_removing_does_not_count_and_goes(output: Output) -> None:
    for number in range(3):
        output.write(number, 1)
    left = output.folder / KNOWN / "batch_id=0"  # killed before it was gone
    left.mkdir()
    (output.folder / "_manifests" / "0.json").unlink()
    assert output.halves() == 2
    output.restart()
    assert output.batches("minutes") == output.batches("waiting") == {"1", "2"}
    output.write(3, 1)
    assert output.batches(KNOWN) == {"2", "3"}
    output.restart(keep=1)
    assert output.batches("minutes") == {"3"}
    assert output.halves() == 1
