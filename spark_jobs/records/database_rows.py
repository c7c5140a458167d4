"""Rows as evidence: callback rows, and what waits in a message table, was discarded there or delivered. Pure."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_jobs.records.evidence import HALF, LISTED, TABLE, inside, message
from spark_jobs.runtime.spans import Span

COLUMNS = (
    "database string, transaction_id string, service string, state string, half_topic_id string, "
    "half_partition int, first_offset bigint, last_offset bigint, positions string"
)
"""Rows as `spark_jobs.auditing.row_snapshot` reads them."""

COMMITTED, ROLLED_BACK = "C", "R"

_RUN = r"[0-9]{1,4}(?:-[0-9]{1,4})?"
_POSITIONS = rf"\A(?:-|{_RUN}(?:,{_RUN})*)\z"


def row_evidence(rows: DataFrame, half_topic_id: str, window: Mapping[int, Span]) -> DataFrame:
    """Rows, one for each message that a committed one lists whose halves would all are in the window."""
    here = f.col("half_topic_id") == half_topic_id
    partition = f.col("half_partition")
    contained = inside(window, partition, f.col("first_offset")) & inside(window, partition, f.col("last_offset"))
    listed = here & (f.col("state") == COMMITTED) & f.coalesce(contained, f.lit(False))
    listing = f.when(listed, positions_of(f.col("positions")))
    return rows.select("*", here.alias("here"), f.explode_outer(listing).alias("position")).select(
        "transaction_id",
        f.when(
            f.col("position").isNotNull(),
            message(
                side=f.lit(LISTED),
                position=f.col("position"),
                partition=partition,
                offset=f.col("first_offset"),
                service=f.col("service"),
            ),
        ).alias("message"),
        f.struct(
            "here",
            "state",
            "database",
            partition.alias("partition"),
            f.col("first_offset").alias("first"),
            f.col("last_offset").alias("last"),
            "positions",
            "service",
        ).alias("callback"),
    )


def positions_of(text: Column) -> Column:
    """Return the positions of a text such as `0-2,5`; none of `-`."""
    runs = f.transform(
        f.split(text, ","),
        lambda run: f.sequence(_first(run), _last(run)),
    )
    return f.when(text != "-", f.flatten(runs)).otherwise(f.array().cast("array<int>"))


def is_readable(text: Column) -> Column:
    return text.rlike(_POSITIONS)


def lists(text: Column, position: Column) -> Column:
    """Whether a position is among those of a text such as `0-2,5`, without unpacking it."""
    return f.when(text == "-", f.lit(False)).otherwise(
        f.exists(f.split(text, ","), lambda run: (position >= _first(run)) & (position <= _last(run)))
    )


def _first(run: Column) -> Column:
    return f.substring_index(run, "-", 1).try_cast("int")


def _last(run: Column) -> Column:
    return f.substring_index(run, "-", -1).try_cast("int")


TABLE_COLUMNS = (
    "source string, transaction_id string, created_at timestamp, delivered_at timestamp, service string, "
    "topic string, partition int, first bigint, last bigint, reason string, settled boolean"
)
"""Rows as `spark_jobs.auditing.table_snapshot` reads them.

`first` and `last` are a run of ids. `delivered_at` is null but for evidence, `reason` but for what was discarded.
`settled`: it was delivered before the ends of the real topics were taken, or discarded.
"""


def table_evidence(rows: DataFrame) -> DataFrame:
    """Return a side of each message that has a row: the same side as a half, because it is all committed."""
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
