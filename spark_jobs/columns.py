"""Records as Spark's Kafka source gives them, turned into typed columns. Pure.

Header values come from outside: a missing, malformed or undecodable one gives null and never fails a batch. The raw
headers stay beside the typed columns, so nothing is lost by that.
"""

import enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.identifiers import UUID_LENGTH, UUID_PATTERN
from outbox.protocol.names import COUNT_HEADER, FOREIGN_ORIGIN, MESSAGE_ID_HEADER, ORIGIN_HEADER, SERVICE_HEADER

RAW_COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestamp_type int, "
    "key binary, value binary, headers array<struct<key:string,value:binary>>"
)
"""The record itself; `timestamp_type` is 0 for the producer's time, 1 for the broker's."""

OUTBOX_COLUMNS = (
    "message_id string, transaction_id string, position int, service string, origin_partition int, "
    "origin_offset bigint, message_count int"
)
"""The relay's headers.

In table mode `origin_offset` is the id of the row; there is no position and no half partition. A row of a foreign table
has an id of any type, which is in the header only: its `origin_offset` is null, too.
"""

OUTBOX_NAMES = tuple(column.split()[0] for column in OUTBOX_COLUMNS.split(", "))

PROBLEM_COLUMN = "problem string"
"""What is wrong with a record's headers (`HeaderProblem`); null if nothing is, or if an outbox has written none."""

DAY_COLUMN = "day date"
"""The day of `timestamp` in UTC; the last one of the year 9999 for any later, which few readers could name."""

_MESSAGE_ID = rf"\A{UUID_PATTERN}/[0-9]{{1,4}}\z"
_TABLE_MESSAGE_ID = rf"\A{UUID_PATTERN}/[0-9]{{1,18}}\z"
_SERVICE = r"\A[A-Za-z0-9._-]{1,200}\z"
_ORIGIN = r"\A(?:[0-9]{1,9}|[a-z][a-z0-9_-]{0,62})/[0-9]{1,18}\z"
_FOREIGN_ORIGIN = rf"\A{FOREIGN_ORIGIN}[a-z][a-z0-9_-]{{0,62}}/(?s:.{{1,200}})\z"
_COUNT = r"\A[1-9][0-9]{0,8}\z"
_LAST_DAY = "9999-12-31"


class HeaderProblem(enum.StrEnum):
    """What is wrong with the headers that an outbox has written."""

    MALFORMED_ID = "MALFORMED_ID"
    MALFORMED_SERVICE = "MALFORMED_SERVICE"
    MALFORMED_ORIGIN = "MALFORMED_ORIGIN"
    INCOMPLETE = "INCOMPLETE"
    """The relay writes id, service and origin, or nothing."""


def outbox_columns(records: DataFrame) -> DataFrame:
    """Add the columns `OUTBOX_COLUMNS`, parsed from the relay's headers, behind those of the records."""
    return _unpacked(records).drop("_id", "_service", "_origin")


def landed_columns(records: DataFrame) -> DataFrame:
    """Return the columns of the table of records.

    The session's time zone must be UTC, which `day` depends on.

    Args:
        records: A frame with the schema of Spark's Kafka source, headers included.
    """
    return _unpacked(records).select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        f.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        *OUTBOX_NAMES,
        _problem().alias("problem"),
        f.least(f.to_date("timestamp"), f.lit(_LAST_DAY).cast("date")).alias("day"),
    )


def header_value(name: str | Column) -> Column:
    """Return the value of a header; null if it is missing.

    Of a repeated header the last one counts, as for `lastHeader` of Kafka's Java client and for a Python dictionary.
    """
    from_the_end = f.array_position(f.reverse(f.col("headers.key")), name)  # from 1; 0: absent
    # The place after the last element, where `get` finds null, is the one that an absent header comes to. The same with
    # `filter` costs three times as much, and with `map_from_entries` a repeated header fails the batch.
    return f.get(f.col("headers.value"), (f.size("headers") - from_the_end).cast("int"))


def is_table_origin(origin: Column) -> Column:
    """Whether a valid origin header names a table source: its name begins with a letter, a partition with a digit."""
    return origin >= "a"


def is_foreign_origin(origin: Column) -> Column:
    """Whether the value of an origin header, null included, names a row of a foreign table."""
    return f.coalesce(as_text(origin).rlike(_FOREIGN_ORIGIN), f.lit(False))


def _unpacked(records: DataFrame) -> DataFrame:
    # Header values get columns of their own first, so that each is looked up once.
    names = {"_id": MESSAGE_ID_HEADER, "_service": SERVICE_HEADER, "_origin": ORIGIN_HEADER, "_count": COUNT_HEADER}
    found = records.select("*", *(header_value(header).alias(name) for name, header in names.items()))
    origin = _matching("_origin", _ORIGIN)
    of_table = is_table_origin(f.coalesce(origin, f.lit(""))) | is_foreign_origin(f.col("_origin"))
    message_id = f.when(of_table, _matching("_id", _TABLE_MESSAGE_ID)).otherwise(_matching("_id", _MESSAGE_ID))
    return found.select(
        *records.columns,
        "_id",
        "_service",
        "_origin",
        message_id.alias("message_id"),
        f.substring(message_id, 1, UUID_LENGTH).alias("transaction_id"),
        f.when(~of_table, f.substring(message_id, UUID_LENGTH + 2, 4).cast("int")).alias("position"),
        _matching("_service", _SERVICE).alias("service"),
        f.when(~of_table, f.substring_index(origin, "/", 1).cast("int")).alias("origin_partition"),
        f.substring_index(origin, "/", -1).cast("bigint").alias("origin_offset"),
        _matching("_count", _COUNT).cast("int").alias("message_count"),
    )


def _problem() -> Column:
    """Return the first thing that is wrong with the headers; null if nothing is."""
    present = [f.col(name).isNotNull() for name in ("_id", "_service", "_origin")]
    malformed = {
        HeaderProblem.MALFORMED_ID: present[0] & f.col("message_id").isNull(),
        HeaderProblem.MALFORMED_SERVICE: present[1] & f.col("service").isNull(),
        HeaderProblem.MALFORMED_ORIGIN: present[2]
        & f.col("origin_offset").isNull()
        & ~is_foreign_origin(f.col("_origin")),
        HeaderProblem.INCOMPLETE: (present[0] != present[1]) | (present[1] != present[2]),
    }
    return f.coalesce(*(f.when(found, f.lit(str(problem))) for problem, found in malformed.items()))


def as_text(value: Column) -> Column:
    """Bytes as text; null if they are not UTF-8."""
    return f.try_validate_utf8(value.cast("string"))


def _matching(column: str, pattern: str) -> Column:
    """Return a text where it has the whole of a form, else null."""
    text = as_text(f.col(column))
    return f.when(text.rlike(pattern), text)
