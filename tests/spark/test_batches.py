"""Batches: one that is replayed is in the table once, and readers see complete ones only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark_jobs.columns import landed_columns
from spark_jobs.landing import batch_writer as batches
from spark_jobs.landing.batch_writer import BatchWriter
from spark_jobs.runtime.errors import LostRecordsError, OutputError
from spark_jobs.runtime.folder import Folder
from spark_jobs.tables.manifest import Checksum, Manifest
from spark_jobs.tables.query_checkpoint import Checkpoint
from spark_jobs.tables.sinks import ParquetSink
from spark_jobs.tables.table_reader import ARROW_SCHEMA, read_landed, read_table
from tests.support.landing import TOPICS, Landing, identified, span
from tests.support.spark import Record, records, session


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    made = Landing(tmp_path)
    made.plan(0, 3)
    return made


def test_a_batch_is_visible_once_it_is_landed(landing: Landing) -> None:
    assert landing.places() == []
    landing.land(0, *span(0, 2))
    assert landing.places() == [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2)]


def test_a_landed_batch_that_is_replayed_stays_as_it_is(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    before = landing.files()
    landing.restart()
    landing.land(0, *span(0, 2))
    assert landing.files() == before
    assert landing.places() == [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2)]


def test_a_batch_without_manifest_is_not_visible(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    landing.plan(1, 5)
    landing.land(1, *span(3, 4))
    landing.manifest(1).unlink()
    assert len(list((landing.table / "records" / "batch_id=1").rglob("*.parquet"))) > 0
    assert landing.places() == [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2)]


def test_a_batch_without_manifest_is_replaced_by_its_replay(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    landing.manifest(0).unlink()
    before = landing.files()
    landing.restart()
    landing.land(0, *span(0, 2))
    assert landing.files().isdisjoint(before)
    assert landing.places() == [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2)]


def test_what_a_killed_write_left_is_removed_and_never_visible(landing: Landing) -> None:
    half_written = landing.table / "_writing" / "old-0" / "topic=orders" / "day=2026-11-21"
    half_written.mkdir(parents=True)
    pq.write_table(ARROW_SCHEMA.empty_table(), str(half_written / "part.parquet"))
    assert landing.places() == []
    landing.restart()
    assert landing.files() == set()


def test_a_write_that_fails_leaves_nothing_visible(landing: Landing) -> None:
    bad = landed_columns(records(*span(0, 2))).withColumn("value", f.raise_error(f.lit("no value")).cast("binary"))
    with pytest.raises(Exception, match="no value"):
        landing.writer(bad, 0)
    assert "Batch 0 failed" in str(landing.writer.failure)
    assert landing.places() == []
    landing.land(0, *span(0, 2))
    assert len(landing.places()) == 3


@pytest.mark.long
def test_a_batch_of_aborted_records_only_has_a_manifest_and_no_rows(landing: Landing) -> None:
    landing.land(0)
    assert Manifest.parse(landing.manifest(0).read_text()).rows == 0
    assert landing.places() == []
    landing.plan(1, 4)
    landing.land(1, *span(3, 3))
    assert landing.places() == [("orders", 0, 3)]


def test_topics_and_days_have_folders(landing: Landing) -> None:
    landing.land(0, Record(0), Record(1, topic="2026"), Record(2, topic="a.b-c_d"))
    folders = {str(path.parent.relative_to(landing.table)) for path in landing.files()}
    assert folders == {f"records/batch_id=0/topic={topic}/day=2026-11-21" for topic in ("orders", "2026", "a.b-c_d")}
    assert {topic for topic, _, _ in landing.places()} == {"orders", "2026", "a.b-c_d"}


def test_both_readers_give_the_same_columns(landing: Landing) -> None:
    landing.land(0, Record(0, [("a", b"1"), ("a", None)], key=None), Record(1, identified(1), value=None))
    by_spark = read_table(session(), str(landing.table)).orderBy("offset")
    by_arrow = read_landed(str(landing.table)).sort_by("offset")
    assert set(by_spark.columns) == set(by_arrow.column_names)
    assert by_spark.toArrow().select(by_arrow.column_names).to_pylist() == by_arrow.to_pylist()
    assert read_landed(str(landing.table), ["offset"]).column_names == ["offset"]


def test_an_empty_table_has_all_columns(tmp_path: Path) -> None:
    path = str(tmp_path / "nothing")
    assert read_landed(path).schema == ARROW_SCHEMA
    assert read_landed(path, ["offset"]).column_names == ["offset"]
    assert set(read_table(session(), path).columns) == set(ARROW_SCHEMA.names)


def test_any_parquet_reader_finds_landed_batches_in_the_folder(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    assert pq.read_table(str(landing.table / "records")).num_rows == 3
    assert session().read.parquet(str(landing.table / "records")).count() == 3


def test_a_manifest_says_what_was_read_and_what_landed(landing: Landing) -> None:
    landing.plan(1, 9)
    landing.commit(0)
    landing.land(0, *span(0, 2))
    rows = [*span(4, 6), Record(8), Record(5, identified(99), partition=1)]
    landing.land(1, *rows)
    manifest = Manifest.parse(landing.manifest(1).read_text())
    assert (manifest.job_id, manifest.query_id, manifest.batch_id) == ("land", "query-1", 1)
    assert (manifest.start, manifest.end) == ({"orders": {"0": 3}}, {"orders": {"0": 9}})
    assert manifest.topics == TOPICS
    first, second = manifest.partitions
    assert (first.topic, first.partition, first.rows, first.identified) == ("orders", 0, 4, 3)
    assert (first.first_offset, first.last_offset) == (4, 8)
    assert (second.partition, second.rows, second.first_offset, second.last_offset) == (1, 1, 5, 5)
    assert manifest.checksum.total == sum_of_hashes(landed_columns(records(*rows)))


def test_the_start_of_the_first_batch_is_where_the_query_began(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    assert json.loads(landing.manifest(0).read_text())["start"] == {"orders": {"0": 0}}


def sum_of_hashes(rows: DataFrame) -> int:
    hashes = rows.where("message_id is not null").select(f.xxhash64("message_id").alias("hash")).collect()
    return Checksum(sum(row.hash for row in hashes) % 2**64).total


def test_a_batch_that_was_landed_with_other_offsets_is_refused(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    landing.plan(0, 4)
    with pytest.raises(OutputError, match="other offsets"):
        landing.land(0, *span(0, 3))
    assert len(landing.places()) == 3


def test_a_table_of_another_checkpoint_is_refused(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    (landing.checkpoint / "metadata").write_text('{"id":"query-2"}')
    with pytest.raises(OutputError, match="another checkpoint"):
        landing.restart()
    (landing.checkpoint / "metadata").unlink()
    with pytest.raises(OutputError, match="another checkpoint"):
        landing.restart()


def test_a_checkpoint_of_another_table_is_refused(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    landing.commit(0)
    landing.table = landing.table.with_name("other")
    with pytest.raises(OutputError, match="has landed batches up to 0"):
        landing.restart()


def test_a_topic_that_was_made_again_is_refused_with_what_is_not_landed_of_it(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    landing.topics = {"orders": "another-id"}
    with pytest.raises(LostRecordsError) as raised:
        landing.restart()
    assert str(raised.value) == (
        "Topic orders was deleted since batch 0, and another topic named orders exists now; not landed of it: orders/0 "
        "from 3 on. To go on without it, begin another output with another checkpoint. Land a new topic of that name "
        "into another output with another checkpoint."
    )
    landing.topics = {**TOPICS, "new": "any-id"}
    landing.restart()


@pytest.mark.parametrize("now", [{"orders": "another-id"}, {}], ids=["made again", "gone"])
def test_a_topic_that_changes_while_a_batch_is_read_lands_nothing_of_it(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, now: dict[str, str]
) -> None:
    landing.land(0, *span(0, 2))
    landing.plan(1, 5)
    change = passed("land.records_written", lambda: setattr(landing, "topics", now))
    monkeypatch.setattr(batches, "failpoint", change)
    again = ", and another topic named orders exists now" if now else ""
    said = rf"orders was deleted while batch 1 was read{again}; .* orders/0 from 3 on"
    with pytest.raises(LostRecordsError, match=said):
        landing.land(1, *span(3, 4))
    assert isinstance(landing.writer.failure, LostRecordsError)
    assert not landing.manifest(1).exists()
    assert len(landing.places()) == 3


def test_a_topic_that_is_not_named_any_more_is_refused(landing: Landing) -> None:
    landing.topics = {**TOPICS, "stock": "any-id"}
    landing.restart()
    landing.land(0, *span(0, 2))
    landing.topics = {"stock": "any-id"}
    with pytest.raises(
        OutputError, match=r"orders was landed in .* is not named any more\. .* outbox land retire orders, and leave"
    ):
        landing.restart()
    landing.topics = {"others": "any-id"}
    with pytest.raises(OutputError, match=r"Name it, or begin another output with another checkpoint\."):
        landing.restart()


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    output, checkpoint = Folder(session(), str(file / "table")), Checkpoint(Folder(session(), str(tmp_path)))
    writer = BatchWriter("land", output, checkpoint, ParquetSink(session(), output), dict, {})
    with pytest.raises(OutputError, match="file/table cannot be written: ParentNotDirectoryException"):
        writer.prepare()


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


@pytest.mark.parametrize("name", ["land.data_written", "land.manifest_written"])
def test_the_writer_can_be_killed_before_and_after_the_manifest(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stood: list[bool] = []
    monkeypatch.setattr(batches, "failpoint", passed(name, lambda: stood.append(landing.manifest(0).exists())))
    landing.land(0, *span(0, 2))
    assert stood == [name == "land.manifest_written"]


def passed(name: str, then: Callable[[], None]) -> Callable[[str], None]:
    return lambda point: then() if point == name else None


def test_a_file_of_the_output_itself_is_written_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts: list[str] = []
    folder = Folder(session(), str(tmp_path))
    monkeypatch.setattr(folder, "move", lambda draft, _name: drafts.append(draft))
    folder.put_text("_owner.json", "ours")
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".crc"] == drafts
