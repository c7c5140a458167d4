"""The table that `land` writes, and two readers of it: Spark and pyarrow.

    <output>/batch_id=7/topic=orders/day=2026-11-21/part-….parquet   rows of batch 7
    <output>/_manifests/7.json                                       batch 7 is complete, and what is in it
    <output>/_writing/                                               batches that are being written

A batch counts once its manifest stands; both readers go by that. Names that begin with `_` are skipped by Spark, Hive,
Arrow and others, so a plain Parquet reader pointed at the folder finds finished batches too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import dataset, fs
from pyspark.errors import AnalysisException

from spark_jobs.columns import DAY_COLUMN, OUTBOX_COLUMNS, RAW_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFESTS = "_manifests"
WRITING = "_writing"

PARTITIONED_BY = ("topic", "day")
"""Columns that are folders inside a batch."""

COLUMNS = f"{RAW_COLUMNS}, {OUTBOX_COLUMNS}, {DAY_COLUMN}"
"""What one batch holds."""

TABLE_COLUMNS = f"{COLUMNS}, batch_id bigint"

_ARROW_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_type": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    "message_id": pa.string(),
    "transaction_id": pa.string(),
    "position": pa.int32(),
    "producer_group": pa.string(),
    "origin_partition": pa.int32(),
    "origin_offset": pa.int64(),
    "day": pa.date32(),
    "batch_id": pa.int64(),
}
ARROW_SCHEMA = pa.schema(_ARROW_TYPES)
"""The table's columns for pyarrow: the same as `TABLE_COLUMNS`."""

_FOLDERS = pa.schema([ARROW_SCHEMA.field(name) for name in ("batch_id", *PARTITIONED_BY)])


def batch_folder(batch_id: int) -> str:
    """Where the rows of a batch are, below the table."""
    return f"batch_id={batch_id}"


def manifest_file(batch_id: int) -> str:
    """Where the manifest of a batch is, below the table."""
    return f"{MANIFESTS}/{batch_id}.json"


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """The rows of all complete batches, as a frame.

    The batches are those that are complete at the time of the call; the frame does not follow the table.

    Args:
        spark: Session to read with.
        path: Folder of the table, on any file system that Spark knows.
    """
    root = path.rstrip("/")
    batches = [f"{root}/{batch_folder(batch_id)}" for batch_id in _batches_with_rows(spark, root)]
    if not batches:
        return spark.createDataFrame([], TABLE_COLUMNS)
    return spark.read.schema(TABLE_COLUMNS).option("basePath", root).parquet(*batches)


def _batches_with_rows(spark: SparkSession, root: str) -> list[int]:
    try:
        manifests = spark.read.schema("batch_id bigint, rows bigint").json(f"{root}/{MANIFESTS}")
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return sorted(row.batch_id for row in manifests.where("rows > 0").select("batch_id").collect())


def read_landed(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of all complete batches, as an Arrow table; without Spark.

    Args:
        path: Folder of the table: a local path, or a URI that pyarrow knows (`s3://…`, `hdfs://…`, `gs://…`).
        columns: Names of columns; all by default.

    Raises:
        OSError: A file cannot be read.
    """
    filesystem, root = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
    root = root.rstrip("/")
    batches = _landed_batches(filesystem, root)
    files = [file for batch_id in batches for file in _parquet_files(filesystem, root, batch_id)]
    if not files:
        empty = ARROW_SCHEMA.empty_table()
        return empty if columns is None else empty.select(list(columns))
    rows = dataset.dataset(
        files,
        schema=ARROW_SCHEMA,
        format="parquet",
        filesystem=filesystem,
        partitioning=dataset.partitioning(_FOLDERS, flavor="hive"),
        partition_base_dir=root,
    )
    return rows.to_table(columns=None if columns is None else list(columns))


def _landed_batches(filesystem: fs.FileSystem, root: str) -> Iterator[int]:
    selector = fs.FileSelector(f"{root}/{MANIFESTS}", allow_not_found=True)
    manifests = [info for info in filesystem.get_file_info(selector) if info.base_name[:1].isdigit()]
    for info in manifests:
        with filesystem.open_input_file(info.path) as file:
            manifest = json.loads(file.read())
        if manifest["rows"]:
            yield manifest["batch_id"]


def _parquet_files(filesystem: fs.FileSystem, root: str, batch_id: int) -> Iterator[str]:
    selector = fs.FileSelector(f"{root}/{batch_folder(batch_id)}", recursive=True)
    for info in filesystem.get_file_info(selector):
        # The dot marks Hadoop's checksum files.
        if info.extension == "parquet" and not info.base_name.startswith("."):
            yield info.path
