"""Two readers of the tables that `land` writes: Spark and pyarrow.

A batch counts once its manifest exists, and a compacted folder once its compaction is recorded.
Delta tables are read by Spark, through Delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyarrow import dataset, fs
from pyspark.sql import functions as f

from outbox.errors import ConfigurationError
from spark_jobs.runtime.errors import OutputError
from spark_jobs.runtime.folder import Folder, read_texts
from spark_jobs.runtime.jvm import JAVA_ERRORS
from spark_jobs.runtime.spans import Gap
from spark_jobs.tables.compaction import Compaction, Folders, live_folders
from spark_jobs.tables.delta import FORMAT, LOG, is_delta_table, is_version, require_delta
from spark_jobs.tables.layout import (
    BATCH_COLUMN,
    COLUMNS,
    COMPACTIONS,
    MANIFESTS,
    PARSED,
    PARTITIONED_BY,
    QUARANTINE,
    QUARANTINE_COLUMNS,
    RECORDS,
    unit_folder,
)
from spark_jobs.tables.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    "service": pa.string(),
    "origin_partition": pa.int32(),
    "origin_offset": pa.int64(),
    "problem": pa.string(),
    "day": pa.date32(),
    "batch_id": pa.int64(),
}
ARROW_SCHEMA = pa.schema(_ARROW_TYPES)
"""The columns of the records for pyarrow."""

_T = TypeVar("_T")

Compactions = dict[int, Compaction]
"""Those of one table, by number."""

_FOLDERS = pa.schema([ARROW_SCHEMA.field(name) for name in ("batch_id", *PARTITIONED_BY)])

_TRIES = 10
"""How often files are listed before a reader gives up; a compaction disturbs it once for each day that it swaps."""

_SCHEMAS = {RECORDS: COLUMNS, QUARANTINE: QUARANTINE_COLUMNS}


def read_table(spark: SparkSession, path: str, table: str = RECORDS) -> DataFrame:
    """Return the rows of all complete batches, as a frame.

    The batches are those that are complete at the time of the call; the frame does not follow the table, and fails if
    it is used after `compact` has removed a folder that it was to read.

    Args:
        path: Output of the job, on any file system that Spark supports.
        table: `records`, `quarantine` or `parsed/<topic>`.

    Raises:
        ConfigurationError: There are no parsed values of the topic, or the session has no Delta and the table is one.
        OutputError: `compact` removed folders again and again while they were listed.
    """
    root = path.rstrip("/")
    if is_delta_table(Folder(spark, root), table):
        require_delta(spark)
        return spark.read.format(FORMAT).load(f"{root}/{table}")

    def read(compactions: Compactions) -> DataFrame:
        # Spark lists the files when it makes the frame.
        return read_folders(spark, root, table, _folders(read_texts(spark, f"{root}/{MANIFESTS}"), compactions))

    return _undisturbed(path, lambda: _compactions(read_texts(spark, f"{root}/{COMPACTIONS}"), table), read)


def accepted_gaps(spark: SparkSession, path: str) -> list[Gap]:
    """Return the offsets that the tables will never have, because an operator accepted their loss; in order of batches.

    Args:
        path: Output of the job.
    """
    manifests = map(Manifest.parse, read_texts(spark, f"{path.rstrip('/')}/{MANIFESTS}"))
    return [gap for manifest in sorted(manifests, key=lambda each: each.batch_id) for gap in manifest.gaps]


def read_folders(spark: SparkSession, root: str, table: str, folders: Folders) -> DataFrame:
    """Return the rows of one table in some folders, as a frame.

    Args:
        folders: The units of all tables, and under which batch ids each is.
    """
    paths = [f"{root}/{unit_folder(unit, id_)}" for unit, ids in folders.items() if unit.table == table for id_ in ids]
    if table in _SCHEMAS:
        columns = f"{_SCHEMAS[table]}, {BATCH_COLUMN}"
        if not paths:
            return spark.createDataFrame([], columns)
        return spark.read.schema(columns).option("basePath", f"{root}/{table}").parquet(*paths)
    if not paths:
        raise ConfigurationError(
            f"{root} has no rows in {table}. Name a table that has some; {PARSED}/<topic> holds what `--parse` read."
        )
    # A schema that has changed over time: the columns of all files, null where a file has none.
    rows = spark.read.option("mergeSchema", "true").option("basePath", f"{root}/{table}").parquet(*paths)
    # What Spark makes of folder names is a guess: a topic may be called 007.
    topic = f.lit(table.removeprefix(f"{PARSED}/"))
    return rows.withColumns({"topic": topic, "batch_id": f.col("batch_id").cast("bigint")})


def read_landed(path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the records of all complete batches as an Arrow table, without Spark; of Parquet tables only.

    Args:
        path: Output of the job: a local path, or a URI that pyarrow supports (`s3://…`, `hdfs://…`, `gs://…`).
        columns: Names of columns; all by default.

    Raises:
        OSError: A file cannot be read, also because `compact` has removed it since it was listed: read again then.
        ConfigurationError: The records are in a Delta table.
        OutputError: `compact` removed folders again and again while they were listed.
    """
    filesystem, root = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
    root = root.rstrip("/")
    log = fs.FileSelector(f"{root}/{RECORDS}/{LOG}", allow_not_found=True)
    if any(is_version(info.base_name) for info in filesystem.get_file_info(log)):
        raise ConfigurationError(
            f"{path} has Delta tables. Read them with read_table(), or without Spark with a reader of Delta such as "
            "delta-rs or DuckDB."
        )

    def listed(compactions: Compactions) -> list[str]:
        folders = _folders(_texts(filesystem, f"{root}/{MANIFESTS}"), compactions)
        places = [unit_folder(unit, id_) for unit, ids in folders.items() if unit.table == RECORDS for id_ in ids]
        return [file for place in places for file in _parquet_files(filesystem, f"{root}/{place}")]

    files = _undisturbed(path, lambda: _compactions(_texts(filesystem, f"{root}/{COMPACTIONS}"), RECORDS), listed)
    if not files:
        empty = ARROW_SCHEMA.empty_table()
        return empty if columns is None else empty.select(list(columns))
    rows = dataset.dataset(
        files,
        schema=ARROW_SCHEMA,
        format="parquet",
        filesystem=filesystem,
        partitioning=dataset.partitioning(_FOLDERS, flavor="hive"),
        partition_base_dir=f"{root}/{RECORDS}",
    )
    return rows.to_table(columns=None if columns is None else list(columns))


def _undisturbed(path: str, look: Callable[[], Compactions], read: Callable[[Compactions], _T]) -> _T:
    """List files between two looks at the compactions that see the same ones.

    A folder that vanishes is passed over by Spark and listed in part by pyarrow, without a word. `compact` records a
    compaction before it removes anything; so if none came, all folders were there until the end. The manifests are read
    after the first look: a batch that was compacted had its manifest before.
    """
    before = look()
    for _ in range(_TRIES):
        try:
            found = read(before)
        except (OSError, *JAVA_ERRORS):
            now = look()
            if now == before:
                raise
        else:
            now = look()
            if now == before:
                return found
        before = now
    raise OutputError(
        f"{path} was compacted again and again while its files were listed. Read it after `compact` ends."
    )


def _compactions(texts: Iterable[str], table: str) -> Compactions:
    found = map(Compaction.parse, texts)
    return {each.number: each for each in found if each.unit.table == table}


def _folders(manifests: Iterable[str], compactions: Compactions) -> Folders:
    return live_folders(map(Manifest.parse, manifests), compactions.values())


def _texts(filesystem: fs.FileSystem, folder: str) -> Iterator[str]:
    for info in filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        if info.base_name[:1].isdigit():
            with filesystem.open_input_file(info.path) as file:
                yield file.read().decode()


def _parquet_files(filesystem: fs.FileSystem, folder: str) -> Iterator[str]:
    for info in filesystem.get_file_info(fs.FileSelector(folder, recursive=True)):
        # The dot marks Hadoop's checksum files.
        if info.extension == "parquet" and not info.base_name.startswith("."):
            yield info.path
