"""Compacting closed days: the same rows in fewer files, checked before the swap, whatever dies where."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.runtime.errors import OutputError
from spark_jobs.tables import compactor as compact_module
from spark_jobs.tables import table_reader as table
from spark_jobs.tables.compaction import Folders, live_folders
from spark_jobs.tables.compactor import Compactor, compact
from spark_jobs.tables.layout import QUARANTINE
from spark_jobs.tables.table_reader import ARROW_SCHEMA, read_landed, read_table
from tests.support.landing import Landing, compact_settings, identified, span
from tests.support.spark import Record, session

TODAY = date(2026, 11, 23)
LATE = datetime(2026, 11, 22, 12, tzinfo=UTC)

_long = partial(pytest.param, marks=pytest.mark.long)


class KilledError(BaseException):
    """In place of SIGKILL: nothing catches it."""


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    """Two batches of a closed day, the second with a row of an open one."""
    made = Landing(tmp_path)
    made.plan(0, 3)
    made.land(0, *span(0, 2))
    made.plan(1, 6)
    made.land(1, *span(3, 4), Record(5, identified(5), timestamp=LATE))
    return made


def run(landing: Landing, **settings: int) -> int:
    return compact(session(), compact_settings(landing, **settings), TODAY, lambda: False)


def content(landing: Landing) -> list[dict[str, object]]:
    """All rows as both readers give them, but for the batch that they are counted to."""
    columns = [name for name in read_landed(str(landing.table)).column_names if name != "batch_id"]
    rows = read_landed(str(landing.table)).sort_by("offset").select(columns).to_pylist()
    by_spark = read_table(session(), str(landing.table)).orderBy("offset").select(*columns).toArrow().to_pylist()
    assert by_spark == rows
    return rows  # type: ignore[no-any-return]  # pyarrow has no types


def folders(landing: Landing) -> set[str]:
    return {str(path.parent.relative_to(landing.table)) for path in landing.files()}


COMPACTED = {
    "records/batch_id=-1/topic=orders/day=2026-11-21",
    "records/batch_id=1/topic=orders/day=2026-11-22",
}


def test_a_closed_day_is_one_folder_with_the_same_rows(landing: Landing) -> None:
    before = content(landing)
    assert len(before) == 6
    assert run(landing) == 1
    assert content(landing) == before
    assert folders(landing) == COMPACTED
    assert len(landing.files()) == 2
    assert pq.read_table(str(landing.table / "records")).num_rows == 6
    assert run(landing) == 0


@pytest.mark.parametrize("reader", ["spark", "pyarrow"])
@pytest.mark.long
def test_a_reader_that_compact_overtakes_gives_all_rows(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    left = min(landing.files())
    overtaken: list[int] = []

    def overtake(*given: Any) -> Folders:
        folders = live_folders(*given)
        if not overtaken:
            overtaken.append(run(landing))
            # As a listing finds them while they are removed: folders that stand, and not all that was in them.
            left.parent.mkdir(parents=True)
            pq.write_table(ARROW_SCHEMA.empty_table(), str(left))
            (landing.table / "records" / "batch_id=1" / "topic=orders" / "day=2026-11-21").mkdir(parents=True)
        return folders

    monkeypatch.setattr(table, "live_folders", overtake)
    path = str(landing.table)
    rows = read_landed(path).num_rows if reader == "pyarrow" else read_table(session(), path).count()
    assert (rows, overtaken) == (6, [1])


def test_a_reader_gives_up_where_compactions_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()
    monkeypatch.setattr(table, "_compactions", lambda *_: {next(numbers): None})
    monkeypatch.setattr(table, "_folders", lambda *_: {})
    with pytest.raises(OutputError, match="was compacted again and again while its files were listed"):
        read_landed(str(tmp_path))


@pytest.mark.long
def test_late_rows_of_a_compacted_day_are_compacted_with_it(landing: Landing) -> None:
    run(landing)
    landing.restart()
    landing.plan(2, 8)
    landing.land(2, *span(6, 7))
    before = content(landing)
    assert run(landing) == 1
    assert content(landing) == before
    assert len(before) == 8
    compaction = json.loads((landing.table / "_compactions" / "2.json").read_text())
    assert (compaction["replaces"], compaction["rows"]) == ([-1, 2], 5 + 2)
    assert folders(landing) == {path.replace("=-1", "=-2") for path in COMPACTED}


@pytest.mark.parametrize("point", [_long("compact.data_moved"), "compact.swapped", _long("compact.removed")])
@pytest.mark.long
def test_a_compaction_that_dies_changes_no_row(landing: Landing, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    before = content(landing)

    def die(name: str) -> None:
        if name == point:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(compact_module, "failpoint", die)
        with pytest.raises(KilledError):
            run(landing)
    assert content(landing) == before
    run(landing)
    assert content(landing) == before
    assert folders(landing) == COMPACTED


@pytest.mark.long
def test_what_a_killed_write_left_is_removed(landing: Landing) -> None:
    left = landing.table / "_compacting" / "some-run"
    left.mkdir(parents=True)
    run(landing)
    assert not left.exists()


def test_files_that_are_not_what_landed_are_not_compacted(landing: Landing) -> None:
    before = folders(landing)
    file = min((landing.table / "records" / "batch_id=0").rglob("part-*.parquet"))
    rows = pq.read_table(str(file), partitioning=None)
    pq.write_table(rows.slice(1), str(file))
    (file.parent / f".{file.name}.crc").unlink()
    with pytest.raises(OutputError, match="holds 4 rows in folders 0, 1, and the manifests list 5"):
        run(landing)
    identifiers = pa.array(["0192f3a4-5b6c-7d8e-9f00-ffffffffffff/0"] * rows.num_rows)
    index = rows.column_names.index("message_id")
    pq.write_table(rows.set_column(index, rows.field(index), identifiers), str(file))
    with pytest.raises(OutputError, match=r"or of other message ids\. Nothing was compacted"):
        run(landing)
    assert folders(landing) == before


@pytest.mark.long
def test_a_compaction_whose_batches_have_no_manifest_is_left_alone(landing: Landing) -> None:
    run(landing)
    before = folders(landing)
    landing.manifest(0).unlink()
    with pytest.raises(OutputError, match=r"no manifest of batch 0, which was compacted\. Nothing was done"):
        run(landing)
    assert folders(landing) == before


@pytest.mark.long
def test_rows_that_were_written_wrong_replace_nothing(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(landing)
    write = Compactor._write

    def write_less(self: Compactor, rows: object, size: int, written: str) -> None:
        write(self, rows.where("offset <> 1"), size, written)  # type: ignore[attr-defined]  # a frame

    monkeypatch.setattr(Compactor, "_write", write_less)
    with pytest.raises(OutputError, match=r"read as 5 rows with checksum \w+ and written as 4 .* Nothing was replaced"):
        run(landing)
    assert content(landing) == before
    assert not (landing.table / "_compactions").exists()


@pytest.mark.long
def test_all_tables_are_compacted_to_files_of_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    landing = Landing(tmp_path)
    landing.schemas = {"orders": "id bigint, tags map<string,string>"}
    landing.restart()
    for batch_id in range(2):
        landing.plan(batch_id, batch_id + 1)
        landing.land(batch_id, Record(batch_id, value=b'{"id": 1, "tags": {"a": "b"}}'), Record(batch_id + 10))
    monkeypatch.setattr(compact_module, "TARGET_FILE_BYTES", 1024)
    assert run(landing) == 3
    assert len(landing.places()) == 4
    parsed = read_table(session(), str(landing.table), "parsed/orders").collect()
    assert [(row.value.id, row.value.tags, row.batch_id) for row in parsed] == [(1, {"a": "b"}, -1)] * 2
    assert read_table(session(), str(landing.table), QUARANTINE).count() == 2
    assert len(list((landing.table / "records").rglob("part-*.parquet"))) > 1


def test_compact_of_parquet_without_the_option_is_refused(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed run left is removed all the same: other readers read it twice."""
    before = content(landing)

    def die(name: str) -> None:
        if name == "compact.swapped":
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(compact_module, "failpoint", die)
        with pytest.raises(KilledError):
            run(landing)
    listed = str(landing.table / "records")
    assert pq.read_table(listed).num_rows == 6 + 5
    left = folders(landing)
    settings = compact_settings(landing, manifest_readers_only=False)
    with pytest.raises(OutputError, match=r"has Parquet tables, and nothing was compacted\. .* --sink delta"):
        compact(session(), settings, TODAY, lambda: False)
    assert pq.read_table(listed).num_rows == 6
    assert folders(landing) == COMPACTED < left
    assert content(landing) == before


def test_a_job_that_is_asked_to_stop_ends_between_two_days(landing: Landing) -> None:
    assert compact(session(), compact_settings(landing), TODAY, lambda: True) == 0
