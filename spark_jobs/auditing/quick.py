"""The quick audit: numbers and hashes of the messages that are committed, beside those that are visible. Pure.

It asks for each message only whether its decision lists it; what became of it, and why, is asked by the judge.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_jobs.auditing.comparison import Comparison, compare
from spark_jobs.auditing.judge import Circumstances, counts, last_listing
from spark_jobs.auditing.service_databases import database_of
from spark_jobs.auditing.window import text_of
from spark_jobs.records.evidence import Found, created_ms, evidence

_HOUR_MS = 3_600_000
_FIELDS = ("topic", "partition", "offset", "position", "truth", "source", "content")


def compare_messages(found: Found, circumstances: Circumstances) -> list[Comparison]:
    """Compare the messages of a window, by their topic and the hour that is in their ids."""
    rows = compare(*sides(found, circumstances), "topic", "hour").orderBy("topic", "hour").collect()
    return [Comparison(row.topic, text_of(row.hour * _HOUR_MS), row.expected, row.found, row.differs) for row in rows]


def sides(found: Found, circumstances: Circumstances) -> tuple[DataFrame, DataFrame]:
    """Return the committed and the visible messages."""
    real = f.col("message")
    known = database_of(circumstances.databases, real["service"]).isNotNull()
    ours = f.coalesce(known | real["service"].isin(*circumstances.services), f.lit(True))
    committed = _messages(_committed(found)).union(_messages(found.of_tables))
    return committed, _messages(found.reals.where(ours))


def _committed(found: Found) -> DataFrame:
    """Return the halves that their decision lists."""
    decisions = evidence(found.ops, found.rows).groupBy("transaction_id")
    decided = decisions.agg(f.max("callback").alias("row"), last_listing().alias("listing"))
    # The fields and not their struct: Spark 4.2 loses fields of one that a join has below and a filter above it.
    fields = [f.col(f"message.{name}").alias(name) for name in _FIELDS]
    halves = found.halves.select("transaction_id", *fields).join(decided, "transaction_id", "left")
    one, facts = f.struct(*_FIELDS), f.struct("row", "listing", "truth").alias("facts")
    return halves.select("transaction_id", one.alias("message"), one.alias("one"), facts).where(counts())


def _messages(side: DataFrame) -> DataFrame:
    one, id_ = f.col("message"), f.col("transaction_id")
    content = f.when(one["source"].isNull(), one["content"])  # the row of a message of table mode is gone
    return side.select(
        "transaction_id",
        one["topic"].alias("topic"),
        _hour(id_).alias("hour"),
        f.xxhash64(id_, one["position"], content).alias("hash"),
    )


def _hour(transaction_id: Column) -> Column:
    return f.floor(created_ms(transaction_id) / _HOUR_MS)
