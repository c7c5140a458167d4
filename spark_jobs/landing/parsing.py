"""JSON values as typed columns, one table for a topic; what does not fit is separated with the reason. Pure."""

from __future__ import annotations

import enum

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from outbox.errors import ConfigurationError
from spark_jobs.columns import OUTBOX_NAMES
from spark_jobs.runtime.errors import reason
from spark_jobs.runtime.jvm import JAVA_ERRORS

_CORRUPT = "_corrupt_record"
_ERROR = "_error"
_END = "_end"

PARSED_NAMES = ("topic", "partition", "offset", "timestamp", "key", *OUTBOX_NAMES, "value", "day")
"""Columns of a parsed table; `value` is a struct, null for a tombstone."""


class ValueProblem(enum.StrEnum):
    """Why a value is not in the parsed table; the name of a field follows `MISSING_FIELD`."""

    NOT_UTF8 = "NOT_UTF8"
    NOT_OF_THE_SCHEMA = "NOT_OF_THE_SCHEMA"
    MISSING_FIELD = "MISSING_FIELD"


def parse_schema(spark: SparkSession, topic: str, text: str) -> StructType:
    """Read a schema in Spark's words, as in `order_id bigint NOT NULL, amount decimal(10,2)`."""
    try:
        schema = spark.createDataFrame([], text).schema
    except JAVA_ERRORS as error:
        raise ConfigurationError(
            f"The schema of topic {topic} cannot be parsed: {reason(error)}. "
            "Write it as in 'id bigint NOT NULL, name string'."
        ) from error
    if not schema.names or _CORRUPT in schema.names:
        raise ConfigurationError(
            f"The schema of topic {topic} has no field, or one called {_CORRUPT}. Name the fields of its values."
        )
    return schema


def parse_values(rows: DataFrame, schema: StructType) -> DataFrame:
    """Rows with their JSON values as a struct, and in `_error` why a value could not be read; null if it could.

    A field that the schema does not name is passed over; one that is absent is null. A tombstone has a null struct.

    Args:
        rows: Rows of one topic of the table of records.
        schema: What the values are. A field at the top that is NOT NULL must be there.
    """
    text = f.try_validate_utf8(f.col("value").cast("string"))
    with_error = StructType([*schema.fields, *StructType().add(_CORRUPT, StringType()).fields])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = f.from_json("_text", with_error, options)
    value = f.struct(*(f.col("_parsed").getField(name).alias(name) for name in schema.names))
    return (
        rows.withColumn("_text", text)
        .withColumn("_parsed", parsed)
        .withColumn("_alone", _alone())
        .withColumn(_ERROR, f.when(f.col("value").isNotNull(), _error(schema)))
        .withColumn("_raw", f.col("value"))
        .withColumn("value", f.when(f.col("value").isNotNull() & f.col(_ERROR).isNull(), value))
    )


def parsed_rows(parsed: DataFrame) -> DataFrame:
    """Of what `parse_values` gives, the rows of the parsed table."""
    return parsed.where(f.col(_ERROR).isNull()).select(*PARSED_NAMES)


def failed_rows(parsed: DataFrame) -> DataFrame:
    """Of what `parse_values` gives, the rows whose values could not be read, with their values as they are."""
    return parsed.where(f.col(_ERROR).isNotNull()).withColumn("value", f.col("_raw"))


def _error(schema: StructType) -> Column:
    parsed = f.col("_parsed")
    missing = [
        f.when(parsed.getField(field.name).isNull(), f.lit(f"{ValueProblem.MISSING_FIELD} {field.name}"))
        for field in schema.fields
        if not field.nullable
    ]
    return f.coalesce(
        f.when(f.col("_text").isNull(), f.lit(str(ValueProblem.NOT_UTF8))),
        f.when(
            parsed.isNull() | parsed.getField(_CORRUPT).isNotNull() | ~f.col("_alone"),
            f.lit(str(ValueProblem.NOT_OF_THE_SCHEMA)),
        ),
        *missing,
    )


def _alone() -> Column:
    """Whether a text is one JSON value and nothing else: Spark stops reading where the first value ends.

    The text is put into an array before an end that no text can bring along, as it is named after the text's hash. Of
    the value itself nothing is kept, so Spark skips through it.
    """
    end = f.xxhash64("_text").cast("string")
    array = f.concat(f.lit("["), f.col("_text"), f.lit(f',{{"{_END}":"'), end, f.lit('"}]'))
    found = f.from_json(array, f"array<struct<{_END}:string>>")
    return f.coalesce(f.try_element_at(found, f.lit(2)).getField(_END) == end, f.lit(False))
