"""The order of what was delivered, by producer group and ordering key. Pure."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from spark_jobs.proof.verdicts import Verdict


def reordered(judged: DataFrame) -> DataFrame:
    """Judge anew what is right but for its place behind a later message.

    On one partition of a real topic the messages of one producer group and ordering key have the order of their
    transactions' first halves, and of their positions. What comes late says so, and is not compared.

    Args:
        judged: Messages with `verdict`, `half`, `real` and `facts`.
    """
    half, real = f.col("half"), f.col("real")
    delivered = f.col("verdict").isin(Verdict.DELIVERED_ONCE, Verdict.LATE) & ~real["late"]
    compared = f.coalesce(delivered & half["ordering"].isNotNull(), f.lit(False))
    lane = _lane(compared, half, real)
    first = f.least(f.col("facts.row.first"), f.col("facts.first_half"))
    sequence = f.when(compared, f.struct(first.alias("first"), f.col("position")))
    before = Window.partitionBy("_lane").orderBy(real["offset"]).rowsBetween(Window.unboundedPreceding, -1)
    placed = judged.select("*", lane.alias("_lane"), sequence.alias("_sequence"))
    overtaken = placed.select("*", (f.col("_sequence") < f.max("_sequence").over(before)).alias("_overtaken"))
    return overtaken.select(
        *(f.col(name) for name in judged.columns if name not in {"verdict", "detail"}),
        f.when(f.col("_overtaken"), Verdict.REORDERED).otherwise(f.col("verdict")).alias("verdict"),
        f.when(f.col("_overtaken"), "behind a later one of its ordering key")
        .otherwise(f.col("detail"))
        .alias("detail"),
    )


def _lane(compared: Column, half: Column, real: Column) -> Column:
    """What is compared with each other; the rest has a lane for each transaction, so that no lane is endless."""
    group = (half["producer_group"], half["ordering"], half["partition"], real["topic"], real["partition"])
    shared = [f.when(compared, column).alias(f"_{number}") for number, column in enumerate(group)]
    return f.struct(*shared, f.when(~compared, f.col("transaction_id")).alias("_alone"))
