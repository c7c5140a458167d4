"""Rows of table mode as evidence: messages that wait or were discarded, and what the relay left of the others. Pure."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark_jobs.records.evidence import HALF, TABLE, message

COLUMNS = (
    "source string, transaction_id string, created_at timestamp, delivered_at timestamp, service string, "
    "topic string, partition int, first bigint, last bigint, reason string, settled boolean"
)
"""Rows as `spark_jobs.auditing.table_snapshot` reads them.

`first` and `last` are a run of ids. `delivered_at` is null but for evidence, `reason` but for what was discarded.
`settled`: it was delivered before the ends of the real topics were taken, or discarded.
"""


def table_evidence(rows: DataFrame) -> DataFrame:
    """Return a side of each message that has a row: the same side as a half, because it is all committed.

    Args:
        rows: A frame of `COLUMNS`.
    """
    return rows.select("*", f.explode(f.sequence("first", "last")).alias("id")).select(
        "transaction_id",
        message(
            side=f.lit(HALF),
            position=f.col("id"),
            topic=f.col("topic"),
            offset=f.col("id"),
            time=f.col("created_at"),
            service=f.col("service"),
            truth=f.lit(TABLE),
            target=f.col("partition"),
            unsettled=~f.col("settled"),
            source=f.col("source"),
            reason=f.col("reason"),
            decided=f.col("delivered_at"),
        ),
    )
