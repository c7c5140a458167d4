"""Where each selected record goes, and in which order. Pure.

All records with one key go to one partition, and so into one lane, which one task writes in the order of (topic,
partition, offset).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as f

from outbox._settings.of_jobs import PartitionBy
from outbox.protocol.partitioner import partition_for_key
from spark_jobs.replaying.plan import Checksum, Lane, Part

MOST_TASKS = 200
"""Tasks that write; a lane belongs to one of them."""

ORDER = ("_target", "_lane", "topic", "partition", "offset")

OUTGOING = (*ORDER, "_timestamp", "_size", "_hash", "key", "value", "headers")
"""What a task that writes is given of each record."""


def with_lanes(records: DataFrame, target: str, partitions: Mapping[str, int], by: PartitionBy) -> DataFrame:
    """Add where each record goes, and what is counted of it.

    Args:
        target: The topic that all go to; empty: each goes to its own.
        partitions: How many partitions each target topic has.
        by: Whether the key chooses the partition, as in a Java producer, or it is the original one. A record without
            a key goes by its original partition.
    """
    topic = f.lit(target) if target else f.col("topic")
    count = f.create_map(
        *(part for name, number in sorted(partitions.items()) for part in (f.lit(name), f.lit(number)))
    )
    return records.select(
        "*",
        topic.alias("_target"),
        _lane(count[topic], by).alias("_lane"),
        f.unix_millis("timestamp").alias("_timestamp"),
        _size().alias("_size"),
        f.xxhash64("topic", "partition", "offset").alias("_hash"),
    )


def _lane(count: Column, by: PartitionBy) -> Column:
    if by is PartitionBy.ORIGINAL:
        return f.col("partition")
    # A lambda, because Spark makes an Arrow function of type hints, which needs pandas. It is called for all rows,
    # whatever the condition around it is.
    of_key = f.udf(lambda key, partitions: None if key is None else partition_for_key(bytes(key), partitions), "int")
    return f.when(f.col("key").isNull(), f.col("partition") % count).otherwise(of_key(f.col("key"), count))


def _size() -> Column:
    def and_one(total: Column, header: Column) -> Column:
        return total + f.octet_length(header["key"]) + f.coalesce(f.octet_length(header["value"]), f.lit(0))

    parts = [f.coalesce(f.octet_length(name), f.lit(0)) for name in ("key", "value")]
    return parts[0] + parts[1] + f.coalesce(f.aggregate("headers", f.lit(0), and_one), f.lit(0))


def parts_of(laned: DataFrame) -> list[Part]:
    """Return what goes from where to where, counted."""
    rows = (
        laned.groupBy("_target", "_lane", "topic", "partition")
        .agg(
            f.count("*").alias("rows"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            f.min("_timestamp").alias("oldest"),
            f.max("_timestamp").alias("newest"),
            f.sum("_size").alias("size"),
            f.max("_size").alias("largest"),
            f.count_if(f.col("key").isNull()).alias("keyless"),
            # In halves: sums of whole hashes would overflow, which Spark refuses.
            f.sum(f.shiftright("_hash", 32)).alias("high"),
            f.sum(f.col("_hash").bitwiseAND(f.lit(0xFFFF_FFFF))).alias("low"),
        )
        .orderBy("_target", "_lane", "topic", "partition")
        .collect()
    )
    return [_part(row) for row in rows]


def _part(row: Row) -> Part:
    names = ("topic", "partition", "rows", "first", "last", "oldest", "newest", "size", "largest", "keyless")
    fields = {name: row[name] for name in names}
    return Part(Lane(row["_target"], row["_lane"]), **fields, checksum=Checksum.of_halves(row["high"], row["low"]))


def in_order(laned: DataFrame, lanes: int) -> DataFrame:
    """Return records as the tasks write them: each lane whole, in one task, in its order."""
    # The number is given, so that Spark neither joins nor splits partitions on its own.
    tasks = max(min(lanes, MOST_TASKS), 1)
    return laned.select(*OUTGOING).repartition(tasks, "_target", "_lane").sortWithinPartitions(*ORDER)
