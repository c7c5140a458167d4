"""Records of real topics as evidence. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.names import LATE_HEADER, ORIGIN_HEADER
from spark_jobs.columns import header_value, is_foreign_origin, landed_columns
from spark_jobs.records.evidence import REAL, created_ms, inside, lookup, message
from spark_jobs.records.topics import content_hash, has_header
from spark_jobs.runtime.spans import Span


class Began(NamedTuple):
    """The messages of table mode that are in question, by the starts of their local transactions.

    Args:
        start: Start of the window, ms since 1970.
        end: Its end (exclusive).
        now: A time at which no local transaction of a visible message can have begun yet.
    """

    start: int
    end: int
    now: int


def real_evidence(
    records: DataFrame, window: Mapping[int, Span], half_ends: Mapping[int, int], began: Began | None = None
) -> DataFrame:
    """Return records with a message id whose half would be in the window, or nowhere.

    A record names its half in its header `outbox-origin`: one that names a half outside the window belongs to
    another audit. One that names none, or one that the half topic does not have yet, belongs to each.

    A record of table mode names a table source there. It is in the window in which its local transaction began, which
    is in its message id. One that begins later than any local transaction belongs to each.

    A record of a foreign table belongs to none: no evidence of its row is kept.

    Args:
        records: Records of real topics as Spark's Kafka source gives them.
        half_ends: Ends of the half partitions, taken later than those of the real topics.
        began: The window of table mode; None leaves its records out.
    """
    source = f.substring_index(header_value(ORIGIN_HEADER).cast("string"), "/", 1)
    of_table = f.col("origin_offset").isNotNull() & f.col("origin_partition").isNull()
    ours = records.where(~is_foreign_origin(header_value(ORIGIN_HEADER)))
    rows = landed_columns(ours).where(f.col("transaction_id").isNotNull()).withColumn("_table", of_table)
    in_question = f.when(f.col("_table"), _began(began)).otherwise(_in_question(window, half_ends))
    number = f.substring_index("message_id", "/", -1).cast("bigint")
    return rows.where(in_question).select(
        "transaction_id",
        message(
            side=f.lit(REAL),
            position=f.when(f.col("_table"), number).otherwise(f.col("position")),
            topic=f.col("topic"),
            partition=f.col("partition"),
            offset=f.col("offset"),
            time=f.col("timestamp"),
            time_type=f.col("timestamp_type"),
            service=f.col("service"),
            content=content_hash(),
            origin_partition=f.col("origin_partition"),
            origin_offset=f.col("origin_offset"),
            late=has_header(LATE_HEADER),
            source=f.when(f.col("_table"), source),
            ordering=f.when(f.col("_table"), f.col("key")),
        ),
    )


def _began(began: Began | None) -> Column:
    if began is None:
        return f.lit(False)
    created = created_ms(f.col("transaction_id"))
    return ((created >= began.start) & (created < began.end)) | (created >= began.now)


def _in_question(window: Mapping[int, Span], half_ends: Mapping[int, int]) -> Column:
    partition, offset = f.col("origin_partition"), f.col("origin_offset")
    belongs = f.coalesce(inside(window, partition, offset), f.lit(False))
    exists = f.coalesce(offset < lookup(half_ends, partition), f.lit(False))
    return belongs | ~exists
