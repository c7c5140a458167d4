"""Rows of the quarantine: records that are malformed, whole, with the reason. Pure."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_jobs.tables.layout import parsed_table

_RECORD = ("topic", "partition", "offset", "timestamp")
_CONTENT = ("key", "value", "headers", "day")


def quarantined_headers(records: DataFrame) -> DataFrame:
    """Of records, those whose headers have a problem; the table of records has them, too."""
    problem = f.col("problem")
    return _rows(records.where(problem.isNotNull()), f.lit(None).cast("string"), problem)


def quarantined_values(failed: DataFrame, topic: str) -> DataFrame:
    """Rows whose values the schema of their topic does not read; the parsed table misses them."""
    return _rows(failed, f.lit(parsed_table(topic)), f.col("_error"))


def _rows(records: DataFrame, missing_from: Column, why: Column) -> DataFrame:
    return records.select(*_RECORD, missing_from.alias("missing_from"), why.alias("reason"), *_CONTENT)
