"""Batches of `land`: one that is replayed is in the table once, wherever its writer died."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import functions as f

from outbox._settings.of_jobs import MaintainSettings
from spark_jobs.columns import landed_columns
from spark_jobs.landing import batch_writer as batches
from spark_jobs.runtime.errors import LostRecordsError, OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.tables.delta_output import RECORDS, Output, maintain
from spark_jobs.tables.delta_table import _is_version
from tests.support.landing import TOPICS, Landing, killed_at, span
from tests.support.spark import Record, records, session

_long = partial(pytest.param, marks=pytest.mark.long)

ALL = [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2)]


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    made = Landing(tmp_path)
    made.plan(0, 3)
    return made


@pytest.fixture(scope="module")
def first_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landed")
    made = Landing(folder)
    made.plan(0, 3)
    made.land(0, *span(0, 2))
    return folder


@pytest.fixture
def landed(first_batch: Path, tmp_path: Path) -> Landing:
    """An output with a batch that Spark has not committed."""
    return Landing.copied(first_batch, tmp_path)


def passed(name: str, then: Callable[[], None]) -> Callable[[str], None]:
    return lambda point: then() if point == name else None


def test_batches_are_there_with_all_their_columns(landing: Landing) -> None:
    assert landing.places() == []
    landing.land(0, *span(0, 1), Record(2, topic="2026"))
    landing.plan(1, 4)
    landing.land(1, Record(3, [("a", b"1"), ("a", None)], key=None))
    rows = Output(session(), str(landing.table)).read().orderBy("offset").collect()
    assert [(row.topic, row.offset, row.batch_id, str(row.day)) for row in rows] == [
        ("orders", 0, 0, "2026-11-21"),
        ("orders", 1, 0, "2026-11-21"),
        ("2026", 2, 0, "2026-11-21"),
        ("orders", 3, 1, "2026-11-21"),
    ]
    assert [row.message_id is None for row in rows] == [False, False, True, True]
    assert (bytes(rows[0].value), rows[3].key, len(rows[3].headers)) == (b"value", None, 2)


def test_progress_is_what_was_read(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    first = landing.progress()
    assert (first.query_id, first.batch_id) == ("query-1", 0)
    assert (first.start, first.end, first.topics) == ({"orders": {"0": 0}}, {"orders": {"0": 3}}, TOPICS)
    landing.commit(0)
    landing.plan(1, 9)
    landing.land(1, *span(4, 6))
    second = landing.progress()
    assert (second.batch_id, second.start, second.end) == (1, first.end, {"orders": {"0": 9}})


@pytest.mark.parametrize("point", ["land.records_written", _long("land.batch_completed")])
def test_a_batch_is_there_once_wherever_its_writer_died(landing: Landing, point: str) -> None:
    with killed_at(point):
        landing.land(0, *span(0, 2))
    for _ in range(2):
        landing.restart()
        landing.land(0, *span(0, 2))
    assert landing.places() == ALL


def test_a_landed_batch_that_is_replayed_commits_nothing(landed: Landing) -> None:
    before = landed.commits()
    landed.restart()
    landed.land(0, *span(0, 2))
    assert (landed.commits(), landed.places()) == (before, ALL)


def test_rows_of_a_replay_are_not_written_again_though_the_look_missed_them(landed: Landing) -> None:
    """Delta itself passes over the transaction, whoever writes it."""
    landed.pair.output.commit(landed.progress(), landed_columns(records(*span(0, 2))))
    assert landed.places() == ALL


def test_a_write_that_fails_leaves_nothing_visible(landing: Landing) -> None:
    bad = landed_columns(records(*span(0, 2))).withColumn("value", f.raise_error(f.lit("no value")).cast("binary"))
    with pytest.raises(Exception, match="no value"):
        landing.writer(bad, 0)
    assert "Batch 0 failed" in str(landing.writer.failure)
    assert landing.places() == []
    landing.restart()
    landing.land(0, *span(0, 2))
    assert landing.places() == ALL


def test_a_batch_without_rows_is_a_batch(landing: Landing) -> None:
    landing.land(0)
    assert landing.progress().end == {"orders": {"0": 3}}
    assert landing.places() == []
    landing.plan(1, 4)
    landing.land(1, *span(3, 3))
    assert landing.places() == [("orders", 0, 3)]


@pytest.mark.parametrize(("batch_id", "end"), [(0, 3), (1, 6)], ids=["an earlier one", "the last one"])
def test_a_batch_that_was_landed_with_other_offsets_is_refused(landed: Landing, batch_id: int, end: int) -> None:
    landed.plan(1, 5)
    landed.land(1, *span(3, 4))
    landed.plan(batch_id, end)
    with pytest.raises(OutputError, match="other offsets"):
        landed.land(batch_id, *span(0, end))
    assert len(landed.places()) == 5


@pytest.mark.parametrize("killed", [False, True])
def test_a_table_of_another_checkpoint_is_refused(landing: Landing, *, killed: bool) -> None:
    """Also one whose first batch has only claimed the output, or has no commit of Spark."""
    if killed:
        with killed_at("land.records_written"):
            landing.land(0, *span(0, 2))
    else:
        landing.pair.claim()
    metadata = landing.checkpoint / "metadata"
    metadata.write_text('{"id":"query-2"}')
    with pytest.raises(OutputError, match="another checkpoint"):
        landing.restart()
    metadata.unlink()
    with pytest.raises(OutputError, match="another checkpoint"):
        landing.restart()
    metadata.write_text('{"id":"query-1"}')
    landing.restart()
    landing.land(0, *span(0, 2))
    assert landing.places() == ALL


def test_of_two_jobs_that_begin_an_output_at_once_one_fails(landing: Landing, tmp_path: Path) -> None:
    other = Landing(tmp_path / "other", "query-2")
    other.table = landing.table
    other.restart()  # both have found nothing there
    other.plan(0, 3)
    landing.land(0, *span(0, 2))
    with pytest.raises(Exception, match=r"already exists|DELTA_PATH_EXISTS"):
        other.land(0, *span(0, 2))
    assert landing.places() == ALL
    with pytest.raises(OutputError, match="another checkpoint"):
        other.restart()


def test_a_table_of_another_writer_is_refused(landing: Landing) -> None:
    session().range(1).write.format("delta").save(str(landing.table / RECORDS))
    with pytest.raises(OutputError, match="no commit of land is in its log"):
        landing.restart()


def test_a_checkpoint_of_another_table_is_refused(landed: Landing) -> None:
    landed.commit(0)
    landed.table = landed.table.with_name("other")
    with pytest.raises(OutputError, match="has landed batches up to 0"):
        landed.restart()


def test_a_topic_that_was_made_again_is_refused_with_what_is_not_landed_of_it(landed: Landing) -> None:
    landed.commit(0)
    landed.topics = {"orders": "another-id"}
    with pytest.raises(LostRecordsError) as raised:
        landed.restart()
    assert str(raised.value) == (
        "Topic orders was deleted since batch 0, and another topic named orders exists now; not landed of it: orders/0 "
        "from 3 on. To go on without it, begin another output with another checkpoint."
    )
    landed.topics = {**TOPICS, "new": "any-id"}
    landed.restart()


def test_a_topic_that_was_made_again_before_a_batch_shows_no_reader_a_row(landed: Landing) -> None:
    landed.plan(1, 5)
    landed.topics = {"orders": "another-id"}
    said = r"orders was deleted before batch 1 was read, and another topic named orders exists now; .* orders/0 from 3"
    with pytest.raises(LostRecordsError, match=said):
        landed.land(1, *span(3, 4))
    assert landed.places() == ALL


@pytest.mark.parametrize("now", [{"orders": "another-id"}, {}], ids=["made again", "gone"])
def test_a_topic_that_changes_while_a_batch_is_read_stops_the_job_for_good(
    landed: Landing, monkeypatch: pytest.MonkeyPatch, now: dict[str, str]
) -> None:
    landed.commit(0)
    landed.plan(1, 5)
    change = passed("land.records_written", lambda: setattr(landed, "topics", now))
    monkeypatch.setattr(batches, "failpoint", change)
    again = ", and another topic named orders exists now" if now else ""
    said = rf"orders was deleted while batch 1 was read{again}; .* orders/0 from 3 on"
    with pytest.raises(LostRecordsError, match=said):
        landed.land(1, *span(3, 4))
    assert isinstance(landed.writer.failure, LostRecordsError)
    with pytest.raises((LostRecordsError, OutputError), match="orders"):
        landed.restart()


def test_a_topic_that_is_not_named_any_more_is_refused(landing: Landing) -> None:
    landing.topics = {**TOPICS, "stock": "any-id"}
    landing.restart()
    landing.land(0, *span(0, 2))
    landing.topics = {"stock": "any-id"}
    with pytest.raises(
        OutputError, match=r"orders was landed in .* is not named any more\. Name it, or begin another output"
    ):
        landing.restart()
    landing.topics = {"others": "any-id"}
    with pytest.raises(OutputError, match=r"Name it, or begin another output with another checkpoint\."):
        landing.restart()


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    file = tmp_path / "file"
    file.touch()
    landing.table = file / "table"
    with pytest.raises(OutputError, match="file/table cannot be written: ParentNotDirectoryException"):
        landing.restart()


def test_an_unknown_file_system_is_named() -> None:
    with pytest.raises(OutputError, match=r'nofs://x cannot be used: .* No FileSystem for scheme "nofs"'):
        Folder(session(), "nofs://x")


@pytest.mark.parametrize("text", ["v2\n{}\n{}", "v1", "v1\n{}"])
def test_an_unknown_form_of_a_checkpoint_is_refused(landing: Landing, text: str) -> None:
    (landing.checkpoint / "offsets" / "0").write_text(text)
    if text == "v1\n{}":
        landing.land(0, *span(0, 2))  # an empty plan is a plan
    else:
        with pytest.raises(OutputError, match="form"):
            landing.land(0, *span(0, 2))


def test_a_file_of_a_folder_itself_is_written_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[str] = []
    folder = Folder(session(), str(tmp_path))
    monkeypatch.setattr(folder, "move", lambda draft, _name: drafts.append(draft))
    folder.put_text("notes.json", "{}")
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".crc"] == drafts


def test_session_reads_delta_log_with_one_task() -> None:
    assert session().conf.get("spark.databricks.delta.snapshotPartitions") == "1"


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("00000000000000000000.json", True),
        ("00000000000000000010.checkpoint.parquet", True),
        ("_staged_commits", False),
        (".00000000000000000000.json.0d1c.tmp", False),
        ("_last_checkpoint", False),
    ],
)
def test_version_of_delta_log_is_known_by_its_name(name: str, *, is_one: bool) -> None:
    assert _is_version(name) is is_one


def test_table_has_statistics_of_batch_id(landed: Landing) -> None:
    logs = sorted((landed.table / RECORDS / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    found = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]  # of each task's file
    assert {(one["minValues"]["batch_id"], one["maxValues"]["batch_id"]) for one in found} == {(0, 0)}
    assert sum(one["nullCount"]["problem"] for one in found) == 3


@pytest.mark.long
def test_maintenance_writes_one_file_a_day_and_carries_the_progress_on(tmp_path: Path) -> None:
    landing = Landing(tmp_path)
    for batch_id in range(3):
        landing.plan(batch_id, batch_id + 1)
        landing.land(batch_id, *span(batch_id, batch_id))
        landing.commit(batch_id)
    path = str(landing.table / RECORDS)
    stream = Stream(path, tmp_path / "stream")
    assert stream.read() == 3
    landed = landing.progress()
    settings = MaintainSettings(output=str(landing.table))
    before = landing.commits()
    maintain(session(), settings)
    session().conf.unset("spark.databricks.delta.commitInfo.userMetadata")
    assert len(session().read.format("delta").load(path).inputFiles()) == 1
    assert (landing.places(), stream.read()) == (ALL, 0)
    assert landing.commits() > before
    forget(landing, before)
    assert landing.progress() == landed
    landing.restart()
    landing.plan(3, 4)
    landing.land(3, *span(3, 3))
    assert len(landing.places()) == 4
    assert stream.read() == 1


def forget(landing: Landing, commits: int) -> None:
    """Take the progress out of the first commits, as if they had aged out of the log."""
    for file in sorted((landing.table / RECORDS / "_delta_log").glob("*.json"))[:commits]:
        file.write_text(file.read_text().replace("outbox_land", "forgotten"))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


class Stream:
    """A stream over a Delta table, as a user has it."""

    def __init__(self, path: str, checkpoint: Path) -> None:
        self._path = path
        self._checkpoint = checkpoint

    def read(self) -> int:
        """Return how many rows it gives since it was last read."""
        counts: list[int] = []
        rows = session().readStream.format("delta").load(self._path)
        query = rows.writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
        query = query.option("checkpointLocation", str(self._checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()
        return sum(counts)
