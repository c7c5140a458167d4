"""The job `land compact`: many small files of closed days into few.

Delta tables are rewritten by Delta's OPTIMIZE, which no reader notices. Of Parquet tables, the folders of a closed day
become one, checked before it takes their place:

    1  the rows of a unit's folders, counted and compared with the manifests
    2  written into a folder without readers, counted again there: rows and the checksum of all that is in them
    3  renamed to its place, which no reader goes by yet
    4  the swap: the compaction is recorded in a file, by one rename
    5  the replaced folders are removed

A process that dies before 4 leaves the unit as it was, one that dies after it leaves it compacted; the next run removes
what neither counts. `land` may run meanwhile: it never touches a batch that has a manifest.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from math import ceil

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from outbox._failpoints import failpoint
from spark_jobs.runtime.errors import JobFailedError, OutputError, reason
from spark_jobs.runtime.folder import Folder, read_texts
from spark_jobs.runtime.jvm import JAVA_ERRORS
from spark_jobs.runtime.settings import CompactSettings, SinkName
from spark_jobs.tables.checksums import identities, rows_checksum
from spark_jobs.tables.compaction import Compaction, Folders, due, live_folders, origin
from spark_jobs.tables.delta import is_delta_table, optimize
from spark_jobs.tables.layout import (
    COMPACTING,
    COMPACTIONS,
    MANIFESTS,
    PARTITIONED_BY,
    RECORDS,
    TableDay,
    batch_folder,
    compaction_file,
    unit_folder,
)
from spark_jobs.tables.manifest import Checksum, Manifest
from spark_jobs.tables.pairing import last_manifest, sink_of
from spark_jobs.tables.sinks import FILES, tables_of
from spark_jobs.tables.table_reader import read_folders

MIN_FOLDERS = 2
"""Folders of a day that are worth a compaction. No setting: one folder alone is compact already."""

log = structlog.get_logger()


def compact(spark: SparkSession, settings: CompactSettings, today: date, stop: Callable[[], bool]) -> int:
    """Compact all closed days of Delta tables, or of Parquet tables.

    Args:
        today: The day that it is, by UTC.
        stop: Returns whether the job is asked to stop; it is asked before each table or unit.

    Returns:
        How many tables (Delta) or units (Parquet) were compacted.

    Raises:
        OutputError: The tables cannot be read or written, or differ from the manifests; or they are Parquet tables
            and the settings do not allow to compact them.
        JobFailedError: Spark failed.
    """
    output = Folder(spark, settings.output)
    closed = today - timedelta(days=settings.closed_days)
    is_delta = sink_of(output, last_manifest(output)) is SinkName.DELTA
    done = (_optimize if is_delta else _swap)(spark, settings, output, closed, stop)
    log.info("Compacted", output=settings.output, **{"tables" if is_delta else "units": done})
    return done


def _optimize(
    spark: SparkSession, settings: CompactSettings, output: Folder, before: date, stop: Callable[[], bool]
) -> int:
    done = 0
    for table in tables_of(output):
        if stop():
            break
        if not is_delta_table(output, table):
            continue
        began = time.monotonic()
        try:
            removed, added = optimize(spark, output.path(table), before, settings.target_file_bytes)
        except JAVA_ERRORS as error:
            raise JobFailedError(f"OPTIMIZE of {table} in {output} failed: {reason(error)}") from error
        seconds = round(time.monotonic() - began, 2)
        log.info("Table optimized", table=table, before=str(before), replaced=removed, written=added, seconds=seconds)
        done += bool(added)
    return done


def _swap(
    spark: SparkSession, settings: CompactSettings, output: Folder, before: date, stop: Callable[[], bool]
) -> int:
    compactor = Compactor(spark, output, settings.target_file_bytes)
    compactor.tidy()  # also where nothing may be compacted: what a killed run left is what readers read twice
    if not settings.manifest_readers_only:
        raise OutputError(
            f"{output} has Parquet tables, and nothing was compacted. While compact runs, and after it was killed "
            "until it runs again, every reader but read_table() and read_landed() reads rows twice; a stream over the "
            "folder reads them again for good. Land into another output with --sink delta, or add "
            "--manifest-readers-only if every reader is one of these two."
        )
    log.warning("Compacting Parquet tables; only read_table() and read_landed() read rows once", output=str(output))
    done = 0
    for unit, ids in due(compactor.folders, before, MIN_FOLDERS).items():
        if stop():
            break
        try:
            compactor.compact(unit, ids)
        except JAVA_ERRORS as error:
            raise JobFailedError(f"{unit.topic} of {unit.day} in {unit.table} failed: {reason(error)}") from error
        done += 1
    return done


class Compactor:
    """Compacts units of one output; one at a time for an output.

    Args:
        output: The output of `land`.
    """

    def __init__(self, spark: SparkSession, output: Folder, target_file_bytes: int) -> None:
        self._spark = spark
        self._output = output
        self._target = target_file_bytes
        self._manifests = {each.batch_id: each for each in map(Manifest.parse, self._texts(MANIFESTS))}
        self._compactions = {each.number: each for each in map(Compaction.parse, self._texts(COMPACTIONS))}
        replaced = {id_ for each in self._compactions.values() for id_ in each.replaces if id_ >= 0}
        if gone := sorted(replaced.difference(self._manifests)):
            raise OutputError(
                f"{output} has no manifest of batch {gone[0]}, which was compacted. Nothing was done. Put "
                f"{MANIFESTS} back."
            )
        self.folders: Folders = live_folders(self._manifests.values(), self._compactions.values())

    def tidy(self) -> None:
        """Remove what killed runs left: folders that were replaced, and those of compactions without a record."""
        self._output.delete(COMPACTING)
        there = {(table, name) for table in tables_of(self._output) for name in self._output.names(table)}
        for each in self._compactions.values():
            stood_for = {*each.replaces, each.batch_id}.difference(self.folders[each.unit])
            self._remove(each.unit, [id_ for id_ in stood_for if (each.unit.table, f"batch_id={id_}") in there])
        for table, name in there:
            number = name.removeprefix("batch_id=-")
            if number.isdigit() and int(number) not in self._compactions:
                self._output.delete(batch_folder(table, -int(number)))

    def compact(self, unit: TableDay, ids: tuple[int, ...]) -> None:
        """Compact one unit.

        Args:
            ids: Batch ids of its folders.

        Raises:
            OutputError: Its rows are not those of the manifests, or were not written as they were read. Nothing is
                replaced then.
        """
        began = time.monotonic()
        number = max(self._compactions, default=0) + 1
        source = read_folders(self._spark, str(self._output).rstrip("/"), unit.table, {unit: ids}).drop("batch_id")
        rows, checksum = self._check_read(unit, ids, source)
        written = f"{COMPACTING}/{uuid.uuid4().hex}"
        self._write(source, sum(self._output.bytes(unit_folder(unit, id_)) for id_ in ids), written)
        self._check_written(unit, written, source.schema, (rows, checksum))
        compaction = Compaction(number, unit, ids, rows, str(checksum))
        self._output.move(f"{written}/topic={unit.topic}/day={unit.day}", unit_folder(unit, -number))
        failpoint("compact.data_moved")
        # The old folders are the only other copy: they go when the new one would outlive a loss of power.
        self._output.flush()
        self._output.put_text(compaction_file(number), compaction.encode())
        self._output.flush()
        failpoint("compact.swapped")
        self._compactions[number] = compaction
        self._remove(unit, ids)
        log.info(
            "Day compacted", **unit._asdict(), folders=len(ids), rows=rows, seconds=round(time.monotonic() - began, 2)
        )

    def _check_read(self, unit: TableDay, ids: tuple[int, ...], rows: DataFrame) -> tuple[int, Checksum]:
        """Count the rows that are to be compacted; they must be those that landed."""
        found, checksum = rows_checksum(rows)
        landed = [self._manifests[id_] for id_ in frozenset().union(*(origin(id_, self._compactions) for id_ in ids))]
        expected = sum(manifest.rows_of(unit) for manifest in landed)
        same = found == expected
        if same and unit.table == RECORDS:
            same = identities(rows) == sum((manifest.checksum_of(unit) for manifest in landed), Checksum())
        if not same:
            raise OutputError(
                f"{self._name(unit)} holds {found} rows in folders {_numbers(ids)}, and the manifests list "
                f"{expected} or of other message ids. Nothing was compacted. Find out who changed the files."
            )
        return found, checksum

    def _write(self, rows: DataFrame, size: int, written: str) -> None:
        order = ("partition", "offset")
        files = max(1, ceil(size / self._target))
        ordered = rows.repartitionByRange(files, *order).sortWithinPartitions(*order)
        ordered.write.options(**FILES).partitionBy(*PARTITIONED_BY).parquet(self._output.path(written))

    def _check_written(self, unit: TableDay, written: str, schema: StructType, read: tuple[int, Checksum]) -> None:
        found = rows_checksum(self._spark.read.schema(schema).parquet(self._output.path(written)))
        if found != read:
            raise OutputError(
                f"{self._name(unit)} was read as {read[0]} rows with checksum {read[1]} and written as {found[0]} with "
                f"{found[1]}. Nothing was replaced. Try again."
            )

    def _remove(self, unit: TableDay, ids: Iterable[int]) -> None:
        for id_ in ids:
            folder = unit_folder(unit, id_)
            self._output.delete(folder)
            failpoint("compact.removed")
            # Then the topic's and the batch's folder, if this was the last in them.
            for parent in (folder.rpartition("/")[0], batch_folder(unit.table, id_)):
                self._output.delete_empty(parent)

    def _texts(self, name: str) -> list[str]:
        return list(read_texts(self._spark, self._output.path(name)))

    def _name(self, unit: TableDay) -> str:
        return f"{unit.topic} of {unit.day} in {self._output}/{unit.table}"


def _numbers(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))
