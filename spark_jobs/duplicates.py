"""A feed without repeated messages, for consumers that read the topics themselves. Pure.

The relay delivers each message once. Repeats come from elsewhere: a relay with `delivery=at_least_once`, a replay on
purpose, a mirror of the topic. `land` removes none of them: its table is where they can be seen.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

_IDENTITY = "_identity"


def without_duplicates(records: DataFrame, within: str) -> DataFrame:
    """A stream of records with the first one of each message id only.

    A record without a message id is never a duplicate: for Spark itself, null would be one id that they all share.
    A repeat that comes later than `within` after the first is let through; a record that is older than the newest one
    by more than that is dropped, whatever its id. Spark keeps state for the ids of that time.

    Args:
        records: A stream with the columns of `outbox_columns`, and `timestamp`.
        within: Longest time between a record and its repeat by their timestamps, such as `10 minutes`; it must exceed
            the longest time that a relay, a replay or a mirror takes to send again.
    """
    place = f.concat_ws("/", f.lit(""), "topic", "partition", "offset")  # begins as no message id does
    identified = records.withColumn(_IDENTITY, f.coalesce("message_id", place))
    return identified.withWatermark("timestamp", within).dropDuplicatesWithinWatermark([_IDENTITY]).drop(_IDENTITY)
