"""Records as Spark's Kafka source gives them, turned into the typed columns of the table. Pure.

Header values come from outside: a missing, malformed or undecodable one gives null and never fails a batch. The raw
headers stay beside the typed columns, so nothing is lost by that.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.identifiers import UUID_PATTERN
from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER, PRODUCER_GROUP_HEADER

RAW_COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, "
    "key binary, value binary, headers array<struct<key:string,value:binary>>"
)
"""The record itself; `timestamp_type` is 0 for the producer's time, 1 for the broker's."""

OUTBOX_COLUMNS = (
    "message_id string, transaction_id string, position int, producer_group string, "
    "origin_partition int, origin_offset bigint"
)
"""What the relay's headers say."""

DAY_COLUMN = "day date"
"""The day of `timestamp` in UTC."""

_MESSAGE_ID = rf"\A{UUID_PATTERN}/[0-9]{{1,4}}\z"
_GROUP = r"\A[A-Za-z0-9._-]{1,200}\z"
_ORIGIN = r"\A[0-9]{1,9}/[0-9]{1,18}\z"
_UUID_LENGTH = 36


def landed_columns(records: DataFrame) -> DataFrame:
    """The table's columns of Kafka records.

    The session's time zone must be UTC, which `day` depends on.

    Args:
        records: A frame with the schema of Spark's Kafka source, headers included.
    """
    # Header texts get columns of their own first, so that each is looked up once.
    texts = records.select(
        "*",
        header_text(MESSAGE_ID_HEADER).alias("_id"),
        header_text(PRODUCER_GROUP_HEADER).alias("_group"),
        header_text(ORIGIN_HEADER).alias("_origin"),
    )
    message_id, origin = _matching("_id", _MESSAGE_ID), _matching("_origin", _ORIGIN)
    return texts.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        f.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        message_id.alias("message_id"),
        f.substring(message_id, 1, _UUID_LENGTH).alias("transaction_id"),
        f.substring(message_id, _UUID_LENGTH + 2, 4).cast("int").alias("position"),
        _matching("_group", _GROUP).alias("producer_group"),
        f.substring_index(origin, "/", 1).cast("int").alias("origin_partition"),
        f.substring_index(origin, "/", -1).cast("bigint").alias("origin_offset"),
        f.to_date("timestamp").alias("day"),
    )


def header_text(name: str) -> Column:
    """The value of a header as text; null if it is missing or not UTF-8.

    Of a repeated header the last one counts, as for `lastHeader` of Kafka's Java client and for a Python dictionary.
    """
    from_the_end = f.array_position(f.reverse(f.col("headers.key")), name)  # from 1; 0: absent
    # The place after the last element, where `get` finds null, is the one that an absent header comes to. The same with
    # `filter` costs three times as much, and with `map_from_entries` a repeated header fails the batch.
    value = f.get(f.col("headers.value"), (f.size("headers") - from_the_end).cast("int"))
    return f.try_validate_utf8(value.cast("string"))


def _matching(column: str, pattern: str) -> Column:
    """A text where it has the whole of a form, else null."""
    return f.when(f.col(column).rlike(pattern), f.col(column))
