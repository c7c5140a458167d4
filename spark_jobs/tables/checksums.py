"""Counting rows where they were written, for manifests and before a swap."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from spark_jobs.tables.manifest import Checksum, PartitionRows, UnitRows


def count_records(rows: DataFrame) -> tuple[PartitionRows, ...]:
    """Count records by Kafka partition and day."""
    hashed = f.when(f.col("message_id").isNotNull(), f.xxhash64("message_id"))
    parts = (
        rows.groupBy("topic", "partition", _day())
        .agg(
            f.count("*").alias("rows"),
            f.min("offset").alias("first_offset"),
            f.max("offset").alias("last_offset"),
            f.count("message_id").alias("identified"),
            f.count("problem").alias("problems"),
            *hash_sums(hashed),
        )
        .collect()
    )
    in_order = sorted(parts, key=lambda part: (part.topic, part.partition, part.day))  # there are few of them
    return tuple(
        PartitionRows(
            part.topic,
            part.partition,
            part.day,
            part.rows,
            part.first_offset,
            part.last_offset,
            part.identified,
            part.problems,
            str(Checksum.of_halves(part.high, part.low)),
        )
        for part in in_order
    )


def count_units(table: str, rows: DataFrame) -> tuple[UnitRows, ...]:
    """Count the rows of another table by topic and day."""
    parts = rows.groupBy("topic", _day()).agg(f.count("*").alias("rows")).collect()
    return tuple(UnitRows(table, topic, day, rows) for topic, day, rows in sorted(map(tuple, parts)))


def rows_checksum(rows: DataFrame) -> tuple[int, Checksum]:
    """Return the number of rows and their checksum, independent of their order and of `batch_id`."""
    hashed = f.xxhash64(*(_hashable(rows, name) for name in sorted(rows.columns) if name != "batch_id"))
    total = rows.select(hashed.alias("_hash")).agg(f.count("*").alias("rows"), *hash_sums(f.col("_hash"))).collect()[0]
    return total.rows, Checksum.of_halves(total.high, total.low)


def identities(rows: DataFrame) -> Checksum:
    """Return the checksum of message ids, as manifests have it."""
    hashed = f.when(f.col("message_id").isNotNull(), f.xxhash64("message_id"))
    total = rows.agg(*hash_sums(hashed)).collect()[0]
    return Checksum.of_halves(total.high, total.low)


def _hashable(rows: DataFrame, name: str) -> Column:
    # Spark hashes no maps, which a schema of values may have.
    return f.to_json(name) if isinstance(rows.schema[name].dataType, StructType) else f.col(name)


def _day() -> Column:
    return f.col("day").cast("string").alias("day")


def hash_sums(hashed: Column) -> list[Column]:
    """Return the sums `high` and `low` of a hash's halves: whole hashes would overflow a sum, which Spark refuses."""
    high, low = f.shiftright(hashed, 32), hashed.bitwiseAND(f.lit(0xFFFF_FFFF))
    return [f.coalesce(f.sum(half), f.lit(0)).alias(name) for half, name in ((high, "high"), (low, "low"))]
