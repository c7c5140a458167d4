"""What every sink must do: a batch is there once, whenever its writer died; here for Parquet folders and for Delta."""

from __future__ import annotations

from datetime import date
from functools import partial
from pathlib import Path

import pytest

from outbox.errors import ConfigurationError
from spark_jobs.landing import batch_writer as batches
from spark_jobs.runtime.errors import LostRecordsError, OutputError
from spark_jobs.runtime.settings import LandSettings, SinkName
from spark_jobs.tables.compactor import compact
from spark_jobs.tables.layout import QUARANTINE
from spark_jobs.tables.manifest import Manifest
from spark_jobs.tables.table_reader import read_landed, read_table
from tests.support.landing import Landing, compact_settings, identified, span
from tests.support.spark import Record, session

_long = partial(pytest.param, marks=pytest.mark.long)

ALL = [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 2)]


class KilledError(BaseException):
    """In place of SIGKILL: nothing catches it."""


@pytest.fixture(params=[SinkName.PARQUET, _long(SinkName.DELTA)])
def landing(tmp_path: Path, request: pytest.FixtureRequest) -> Landing:
    made = Landing(tmp_path, request.param)
    made.plan(0, 3)
    return made


def quarantined(landing: Landing) -> list[tuple[int, str]]:
    rows = read_table(session(), str(landing.table), QUARANTINE).collect()
    return sorted((row.offset, row.reason) for row in rows)


def test_batches_are_there_with_all_their_columns(landing: Landing) -> None:
    landing.land(0, *span(0, 1), Record(2, topic="2026"))
    landing.plan(1, 4)
    landing.land(1, *span(3, 3))
    rows = read_table(session(), str(landing.table)).orderBy("offset").collect()
    assert [(row.topic, row.offset, row.batch_id, str(row.day)) for row in rows] == [
        ("orders", 0, 0, "2026-11-21"),
        ("orders", 1, 0, "2026-11-21"),
        ("2026", 2, 0, "2026-11-21"),
        ("orders", 3, 1, "2026-11-21"),
    ]
    assert [row.message_id is None for row in rows] == [False, False, True, False]
    assert bytes(rows[0].value) == b"value"


@pytest.mark.parametrize("point", [_long("land.records_written"), "land.data_written", _long("land.manifest_written")])
def test_a_batch_is_there_once_wherever_its_writer_died(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    given = [*span(0, 1), Record(2, [("outbox-id", b"?")])]

    def die(name: str) -> None:
        if name == point:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(batches, "failpoint", die)
        with pytest.raises(KilledError):
            landing.land(0, *given)
    assert landing.manifest(0).exists() is (point == "land.manifest_written")
    landing.restart()
    landing.land(0, *given)
    landing.restart()
    landing.land(0, *given)
    assert landing.places() == ALL
    assert quarantined(landing) == [(2, "MALFORMED_ID")]
    assert Manifest.parse(landing.manifest(0).read_text()).rows == 3


@pytest.mark.long
def test_the_manifest_counts_what_is_there_after_a_replay(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    first = landing.manifest(0).read_text()
    landing.manifest(0).unlink()
    landing.restart()
    landing.land(0, *span(0, 2))
    assert landing.manifest(0).read_text() == first


@pytest.mark.long
def test_a_topic_that_was_made_again_before_a_batch_shows_no_reader_a_row(landing: Landing) -> None:
    landing.land(0, *span(0, 2))
    landing.plan(1, 5)
    landing.topics = {"orders": "another-id"}
    said = r"orders was deleted before batch 1 was read, and another topic named orders exists now; .* orders/0 from 3"
    with pytest.raises(LostRecordsError, match=said):
        landing.land(1, *span(3, 4))
    assert landing.places() == ALL


@pytest.mark.parametrize("first", ["landed", _long("killed")])
def test_a_table_of_the_other_sink_is_refused(landing: Landing, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    if first == "killed":
        die_in_the_first_batch(landing, monkeypatch)
    else:
        landing.land(0, *span(0, 2))
    ours = landing.kind
    landing.kind = next(kind for kind in SinkName if kind is not ours)
    with pytest.raises(OutputError, match=rf"has {ours} tables, .* Go on with --sink {ours} \(or OUTBOX_SINK={ours}\)"):
        landing.restart()


@pytest.mark.long
def test_a_table_of_the_other_sink_is_refused_though_it_has_no_row_and_no_owner(landing: Landing) -> None:
    landing.land(0)
    (landing.table / "_owner.json").unlink()
    landing.restart()
    landing.kind = next(kind for kind in SinkName if kind is not landing.kind)
    with pytest.raises(OutputError, match=r"has .* tables, and this job writes"):
        landing.restart()


@pytest.mark.parametrize("text", ["", "{}", '{"format":99,"sink":"parquet","query_id":"query-1"}'])
def test_an_owner_that_cannot_be_read_is_no_reason_to_begin_anew(landing: Landing, text: str) -> None:
    landing.land(0, *span(0, 2))
    (landing.table / "_owner.json").write_text(text)
    (landing.table / "._owner.json.crc").unlink()
    with pytest.raises(OutputError, match=r"_owner\.json of an output cannot be read|of format 99"):
        landing.restart()
    assert landing.places() == ALL


@pytest.mark.long
def test_rows_without_manifest_belong_to_their_checkpoint(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first batch may die before its manifest; another checkpoint must not take its rows."""
    die_in_the_first_batch(landing, monkeypatch)
    metadata = landing.checkpoint / "metadata"
    metadata.write_text('{"id":"query-2"}')
    with pytest.raises(OutputError, match="another checkpoint"):
        landing.restart()
    metadata.write_text('{"id":"query-1"}')
    landing.restart()
    landing.land(0, *span(0, 2))
    assert landing.places() == ALL


def die_in_the_first_batch(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are written, the manifest is not."""

    def die(name: str) -> None:
        if name == "land.records_written":
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(batches, "failpoint", die)
        with pytest.raises(KilledError):
            landing.land(0, *span(0, 2))


@pytest.mark.long
def test_a_batch_without_rows_is_a_batch(landing: Landing) -> None:
    landing.land(0)
    landing.plan(1, 4)
    landing.land(1, *span(3, 3))
    assert Manifest.parse(landing.manifest(0).read_text()).rows == 0
    assert landing.places() == [("orders", 0, 3)]


@pytest.mark.long
def test_values_that_cannot_be_read_are_told_apart(landing: Landing) -> None:
    landing.schemas = {"orders": "id bigint NOT NULL, name string"}
    landing.restart()
    good = Record(0, identified(0), value=b'{"id": 7, "name": "seven"}')
    bad = Record(1, identified(1), value=b'{"id": "x"}')
    landing.land(0, good, bad, Record(2, topic="other", value=b"{"))
    [row] = read_table(session(), str(landing.table), "parsed/orders").collect()
    assert (row.topic, row.offset, row.value.id, row.value.name) == ("orders", 0, 7, "seven")
    [failed] = read_table(session(), str(landing.table), QUARANTINE).collect()
    assert (failed.offset, failed.missing_from, failed.reason) == (1, "parsed/orders", "NOT_OF_THE_SCHEMA")
    assert bytes(failed.value) == b'{"id": "x"}'
    assert len(landing.places()) == 3
    manifest = Manifest.parse(landing.manifest(0).read_text())
    assert {(part.table, part.topic, part.rows) for part in manifest.beside} == {
        ("parsed/orders", "orders", 1),
        ("quarantine", "orders", 1),
    }


@pytest.mark.long
def test_a_wider_schema_is_read_over_what_a_narrower_one_wrote(landing: Landing) -> None:
    landing.schemas = {"orders": "id bigint"}
    landing.restart()
    landing.land(0, Record(0, value=b'{"id": 1}'))
    landing.schemas = {"orders": "id bigint, name string"}
    landing.restart()
    landing.plan(1, 4)
    landing.land(1, Record(3, value=b'{"id": 2, "name": "two"}'))
    rows = read_table(session(), str(landing.table), "parsed/orders").orderBy("offset").collect()
    assert [(row.value.id, row.value.name, row.batch_id) for row in rows] == [(1, None, 0), (2, "two", 1)]


@pytest.mark.long
def test_compact_of_delta_tables_writes_one_file_a_day(tmp_path: Path) -> None:
    landing = Landing(tmp_path, SinkName.DELTA)
    for batch_id in range(3):
        landing.plan(batch_id, batch_id + 1)
        landing.land(batch_id, *span(batch_id, batch_id))
    with pytest.raises(ConfigurationError, match="has Delta tables"):
        read_landed(str(landing.table))
    path = str(landing.table / "records")
    stream = Stream(path, tmp_path / "stream")
    assert stream.read() == 3
    settings = compact_settings(landing, manifest_readers_only=False)
    assert compact(session(), settings, date(2026, 11, 22), lambda: False) == 0
    assert len(session().read.format("delta").load(path).inputFiles()) == 3
    assert compact(session(), settings, date(2026, 12, 1), lambda: False) == 1
    assert len(session().read.format("delta").load(path).inputFiles()) == 1
    assert landing.places() == ALL
    assert stream.read() == 0
    landing.restart()
    landing.plan(3, 4)
    landing.land(3, *span(3, 3))
    assert len(landing.places()) == 4
    assert stream.read() == 1


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


def test_job_without_sink_over_killed_parquet_batch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a version without the owner's file left it: rows of a batch, no manifest."""
    landing = Landing(tmp_path)
    landing.plan(0, 3)

    def die(name: str) -> None:
        if name == "land.data_written":
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(batches, "failpoint", die)
        with pytest.raises(KilledError):
            landing.land(0, *span(0, 2))
    (landing.table / "_owner.json").unlink()
    landing.kind = LandSettings.model_fields["sink"].default
    with pytest.raises(OutputError, match=r"has parquet tables, .* Go on with --sink parquet"):
        landing.restart()
