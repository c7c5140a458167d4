"""The order of what was delivered, by service and ordering key. Pure."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from spark_jobs.records.audit_verdicts import Verdict


def reordered(judged: DataFrame) -> DataFrame:
    """Judge again what is right but for its place behind a later message.

    On one partition of a real topic the messages of one service and ordering key have the order of their
    transactions' first halves, and of their positions. What comes late is marked, and is not compared. In table mode
    they have the order of their rows.

    Args:
        judged: Messages with a verdict and their places; `_first`, the offset of their transaction's first half,
            `_ordering`, their ordering key, `_source`, their table source, and `_late`.
    """
    delivered = f.col("verdict").isin(Verdict.DELIVERED_ONCE, Verdict.LATE) & ~f.col("_late")
    compared = f.coalesce(delivered & f.col("_ordering").isNotNull(), f.lit(False))
    sequence = f.when(compared, f.struct("_first", "position"))
    before = Window.partitionBy("_lane").orderBy("real_offset").rowsBetween(Window.unboundedPreceding, -1)
    placed = judged.select("*", _lane(compared).alias("_lane"), sequence.alias("_sequence"))
    overtaken = placed.select("*", (f.col("_sequence") < f.max("_sequence").over(before)).alias("_overtaken"))
    return overtaken.withColumns(
        {
            "verdict": f.when(f.col("_overtaken"), Verdict.REORDERED).otherwise(f.col("verdict")),
            "detail": f.when(f.col("_overtaken"), "behind a later one of its ordering key").otherwise(f.col("detail")),
        }
    )


def _lane(compared: Column) -> Column:
    """Return what is compared with each other; the rest has a lane for each transaction, so that no lane is endless."""
    service = ("service", "_ordering", "_source", "half_partition", "real_topic", "real_partition")
    shared = [f.when(compared, f.col(column)).alias(column) for column in service]
    return f.struct(*shared, f.when(~compared, f.col("transaction_id")).alias("_alone"))
