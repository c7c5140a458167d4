"""What waits, by producer group and age. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_jobs.watching.frames.events import HALF
from spark_jobs.watching.frames.messages import Read, is_forgotten, is_old, is_unread, waits_for

AGES = (10, 60, 600, 3_600, 86_400)
"""Ages, s, up to which a bucket reaches; the last one has no end."""

WAITING = "at timestamp, producer_group string, state string, up_to_seconds int, messages bigint, oldest timestamp"
"""Messages that wait: `state` is for what, `up_to_seconds` is the age, null beyond the last bucket."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Messages of one group and one age that wait for the same.

    Args:
        group: Producer group; None for halves that cannot be read.
        state: UNDECIDED or UNDELIVERED.
        up_to_seconds: Age, s, up to which the bucket reaches; None beyond the last one.
        messages: How many.
        oldest_ms: Append time of the oldest half, ms since 1970.
    """

    group: str | None
    state: str
    up_to_seconds: int | None
    messages: int
    oldest_ms: int


def waiting(known: DataFrame, read: Read) -> list[Waiting]:
    """Messages that wait, counted; none while the job is behind, for it is unknown then.

    Args:
        known: What is known of each message.
        read: How far the topics are read.
    """
    if read.until_ms is None:
        return []
    age = f.lit(read.until_ms) - f.unix_millis("half.time")
    counted = (
        _open(known, read)
        .groupBy(f.col("half.producer_group").alias("producer_group"), "state", _bucket(age).alias("up_to_seconds"))
        .agg(f.count("*").alias("messages"), f.unix_millis(f.min("half.time")).alias("oldest_ms"))
    )
    return [Waiting(*row) for row in counted.collect()]


def oldest_unread(events: DataFrame, read: Read) -> dict[int, int]:
    """By half partition, the append time (ms since 1970) of the oldest half that the relay has not read.

    Decided or not, for a topic that is watched or not: a relay that is stopped delivers none of them.

    Args:
        events: What is known of transactions.
        read: How far the topics and the relay are.
    """
    halves = events.where(f.col("side") == HALF)
    unread = halves.where(is_unread(read, f.col("partition"), f.col("first")) & ~is_old(f.col("time"), read))
    oldest = unread.groupBy("partition").agg(f.min("time").alias("time"))
    return {row.partition: row.ms for row in oldest.select("partition", f.unix_millis("time").alias("ms")).collect()}


def waiting_rows(found: Iterable[Waiting], at_ms: int) -> list[tuple[object, ...]]:
    """Rows of `WAITING`."""
    return [
        (_time(at_ms), one.group, one.state, one.up_to_seconds, one.messages, _time(one.oldest_ms)) for one in found
    ]


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _open(known: DataFrame, read: Read) -> DataFrame:
    state = waits_for(read.topics)
    settled = f.col("real").isNotNull() | f.col("discard").isNotNull()  # only its op marker is not read yet
    return known.select("*", state.alias("state")).where(f.col("state").isNotNull() & ~settled & ~is_forgotten(read))


def _bucket(age_ms: Column) -> Column:
    chain = f.when(age_ms <= AGES[0] * 1_000, AGES[0])
    for seconds in AGES[1:]:
        chain = chain.when(age_ms <= seconds * 1_000, seconds)
    return chain
