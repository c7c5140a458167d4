"""Records of real topics as evidence. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.names import LATE_HEADER
from spark_jobs.columns import landed_columns
from spark_jobs.records.evidence import REAL, inside, lookup, message
from spark_jobs.records.headers import content_hash, has_header
from spark_jobs.runtime.spans import Span


def real_evidence(records: DataFrame, window: Mapping[int, Span], half_ends: Mapping[int, int]) -> DataFrame:
    """Return records with a message id whose half would be in the window, or nowhere.

    A record names its half in its header `outbox-origin`: one that names a half outside the window belongs to
    another audit. One that names none, or one that the half topic does not have yet, belongs to each.

    Args:
        records: Records of real topics as Spark's Kafka source gives them.
        window: Spans of half offsets.
        half_ends: Ends of the half partitions, taken later than those of the real topics.
    """
    rows = landed_columns(records).where(f.col("transaction_id").isNotNull())
    return rows.where(_in_question(window, half_ends)).select(
        "transaction_id",
        message(
            side=f.lit(REAL),
            position=f.col("position"),
            topic=f.col("topic"),
            partition=f.col("partition"),
            offset=f.col("offset"),
            time=f.col("timestamp"),
            time_type=f.col("timestamp_type"),
            producer_group=f.col("producer_group"),
            content=content_hash(),
            origin_partition=f.col("origin_partition"),
            origin_offset=f.col("origin_offset"),
            late=has_header(LATE_HEADER),
        ),
    )


def _in_question(window: Mapping[int, Span], half_ends: Mapping[int, int]) -> Column:
    partition, offset = f.col("origin_partition"), f.col("origin_offset")
    belongs = f.coalesce(inside(window, partition, offset), f.lit(False))
    exists = f.coalesce(offset < lookup(half_ends, partition), f.lit(False))
    return belongs | ~exists
