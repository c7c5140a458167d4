"""Delta tables of `land`: the settings of their session, and the columns that Delta keeps statistics of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import functions as f

from spark_jobs.landing.gaps import GapWriter
from spark_jobs.runtime.folder import Folder
from spark_jobs.runtime.settings import SinkName
from spark_jobs.runtime.spans import Gap
from spark_jobs.tables.delta import is_version
from spark_jobs.tables.layout import PARTITIONED_BY, RECORDS
from spark_jobs.tables.pairing import Owner, claim, sink_of
from spark_jobs.tables.query_checkpoint import Checkpoint
from spark_jobs.tables.table_reader import ARROW_SCHEMA, read_landed, read_table
from tests.support.landing import TOPICS, Landing, span
from tests.support.spark import Record, session

FIELDS = 40
"""More than the 32 columns of which Delta keeps statistics."""

PARSED = "parsed/orders"


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path, SinkName.DELTA)


def added(landing: Landing, table: str) -> list[dict[str, dict[str, int]]]:
    """Statistics of the files that a table's log adds, in the order of its commits."""
    logs = sorted((landing.table / table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [json.loads(action["add"]["stats"]) for action in actions if "add" in action]


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
    assert is_version(name) is is_one


@pytest.mark.long
def test_gap_is_accepted_before_delta_has_first_version(landing: Landing) -> None:
    """The first batch wrote files and failed before its commit: Delta has made the folder of its log by then."""
    landing.plan(0, 3)
    claim(landing.output(), Owner(SinkName.DELTA, "query-1"))
    (landing.table / RECORDS / "_delta_log" / "_staged_commits").mkdir(parents=True)
    (landing.table / RECORDS / "topic=orders").mkdir()
    landing.restart()
    landing.writer.finish()
    output, checkpoint = landing.output(), Checkpoint(Folder(session(), str(landing.checkpoint)))
    assert sink_of(output, None) is SinkName.DELTA
    GapWriter("land", output, checkpoint, landing.sink(output, checkpoint)).accept((Gap("orders", 0, 0, 0),), TOPICS)
    assert (landing.places(), checkpoint.last_commit(), checkpoint.end(0)) == ([], 0, {"orders": {"0": 1}})
    assert read_landed(str(landing.table)).schema == ARROW_SCHEMA
    landing.restart()
    landing.plan(1, 3)
    landing.land(1, *span(1, 2))
    assert landing.places() == [("orders", 0, 1), ("orders", 0, 2)]


@pytest.mark.long
def test_wide_table_has_statistics_of_batch_id(landing: Landing) -> None:
    landing.schemas = {"orders": ", ".join(f"field_{number} int" for number in range(FIELDS))}
    landing.restart()
    value = json.dumps({f"field_{number}": number for number in range(FIELDS)}).encode()
    landing.plan(0, 1)
    landing.land(0, Record(0, value=value))
    for table in (RECORDS, PARSED):
        [found] = added(landing, table)
        assert (found["minValues"]["batch_id"], found["maxValues"]["batch_id"]) == (0, 0)


@pytest.mark.long
def test_table_with_batch_id_last_goes_on(landing: Landing) -> None:
    """As tables are that were made before `batch_id` came first."""
    landing.plan(0, 3)
    landing.land(0, *span(0, 2))
    path = str(landing.table / RECORDS)
    rows = session().read.format("delta").load(path)
    last = rows.drop("batch_id").withColumn("batch_id", f.lit(0).cast("bigint"))
    last.write.format("delta").mode("overwrite").option("overwriteSchema", "true").partitionBy(*PARTITIONED_BY).save(
        path
    )
    assert session().read.format("delta").load(path).columns[-1] == "batch_id"
    landing.restart()
    landing.plan(1, 5)
    landing.land(1, *span(3, 4))
    found = read_table(session(), str(landing.table)).orderBy("offset").select("offset", "batch_id", "value").collect()
    assert [(row.offset, row.batch_id) for row in found] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]
    assert {bytes(row.value) for row in found} == {b"value"}


@pytest.mark.long
def test_reordered_table_gets_statistics_of_batch_id(landing: Landing) -> None:
    """The command of docs/spark/tables.md for a table with `batch_id` behind more than 32 columns."""
    path = landing.table / PARSED
    wide = session().range(1).select(*(f.lit(0).alias(f"field_{number}") for number in range(FIELDS)))
    wide.withColumn("batch_id", f.lit(7)).write.format("delta").save(str(path))
    session().sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN batch_id FIRST")
    wide.withColumn("batch_id", f.lit(8)).write.format("delta").mode("append").save(str(path))
    before, after = added(landing, PARSED)
    assert "batch_id" not in before["minValues"]
    assert after["minValues"]["batch_id"] == 8
