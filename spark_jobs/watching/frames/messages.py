"""Old and new events put together: what is known of each message, and what is new about it. Pure.

There is no order between the topics of a batch: an op marker may be read before its half. So everything that is not
settled is kept as it was read, and each message is looked at as a whole whenever something is new.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind
from spark_jobs.records.callback_rows import lists
from spark_jobs.records.evidence import lookup
from spark_jobs.watching.frames.events import CHECK, DISCARD, HALF, OP, REAL

UNDECIDED, UNDELIVERED = "UNDECIDED", "UNDELIVERED"
"""What a half waits for: its decision, or to become visible."""

OPS_WAIT_MS = 600_000
"""Time for which a decision waits for a half that it names without an offset; by append times."""


@dataclass(frozen=True, slots=True)
class Read:
    """How far the topics are read.

    Args:
        half_ends: First offset that is not read, by half partition.
        written: First offset that was not written when the batch was planned, by half partition.
        newest_ms: Newest append time of a half, ms since 1970.
        until_ms: All that was written by then is read, ms since 1970; None while the job is behind: what seems to wait
            may long be settled in what it has not read.
        forget_ms: Age at which an open half is not waited for any more.
        topics: The real topics that are read.
        heads: First offset that the relay has not read, by half partition; absent if it has no checkpoint.
    """

    half_ends: Mapping[int, int]
    written: Mapping[int, int]
    newest_ms: int
    until_ms: int | None
    forget_ms: int
    topics: Collection[str]
    heads: Mapping[int, int]


def together(known: DataFrame, fresh: DataFrame) -> DataFrame:
    """Events that were kept and those of a batch, separated by `fresh`."""
    return known.withColumn("fresh", f.lit(False)).unionByName(fresh.withColumn("fresh", f.lit(True)))


def messages(events: DataFrame) -> DataFrame:
    """One row for each message of which a half or a record is known.

    Args:
        events: As `together` gives them.

    Returns:
        `half`, `op`, `real` and `discard` (the first of each, null if there is none); which of them were known before;
        `records`, the records that are new; `committed`, null if it is undecided.
    """
    known = _sides(events).join(_decisions(events), "transaction_id", "left")
    op, half = f.col("op"), f.col("half")
    inside = (half["partition"] == op["partition"]) & half["first"].between(op["first"], op["last"])
    commits = op["kind"].isin(OpKind.COMMIT, OpKind.DELIVER) & inside & lists(op["positions"], f.col("position"))
    return known.withColumn("committed", f.when(op.isNotNull() & half.isNotNull(), f.coalesce(commits, f.lit(False))))


def _sides(events: DataFrame) -> DataFrame:
    half, real = f.col("side") == HALF, f.col("side") == REAL
    return (
        events.where(half | real)
        .groupBy("transaction_id", "position")
        .agg(
            f.min(f.when(half, f.struct("first", "partition", "topic", "producer_group", "time"))).alias("half"),
            f.bool_or(half & ~f.col("fresh")).alias("half_known"),
            f.min(f.when(real, f.struct("time", "topic", "producer_group"))).alias("real"),
            f.bool_or(real & ~f.col("fresh")).alias("real_known"),
            f.count_if(real & f.col("fresh")).alias("records"),
        )
    )


def _decisions(events: DataFrame) -> DataFrame:
    op = f.col("side") == OP
    undeliverable = (f.col("side") == DISCARD) & (f.col("kind") != DiscardReason.UNDECIDED)
    return (
        events.where(f.col("side").isin(OP, DISCARD))
        .groupBy("transaction_id")
        .agg(
            f.min(f.when(op, f.struct("time", "kind", "positions", "partition", "first", "last"))).alias("op"),
            f.bool_or(op & ~f.col("fresh")).alias("op_known"),
            f.min(f.when(undeliverable, f.struct("time", "kind"))).alias("discard"),
        )
    )


def waits_for(topics: Collection[str]) -> Column:
    """Return what a message waits for; null if nothing. Topics that are not read are not waited for.

    What is in the discard topic for good waits for its op marker, if that is not read yet, and for nothing else; a
    half that cannot be read gets none.
    """
    op, half, real, discard = (f.col(name) for name in ("op", "half", "real", "discard"))
    undecided = half.isNotNull() & op.isNull() & (discard.isNull() | half["producer_group"].isNotNull())
    read = half["topic"].isin(*topics) if topics else f.lit(False)
    undelivered = half.isNotNull() & f.col("committed") & real.isNull() & discard.isNull() & read
    return f.when(undecided, UNDECIDED).when(undelivered, UNDELIVERED)


def is_forgotten(read: Read) -> Column:
    """Whether a half is too old to be waited for."""
    return is_old(f.col("half.time"), read)


def is_old(time: Column, read: Read) -> Column:
    """Whether a half of this append time is too old to be waited for; none is while the job is behind."""
    return f.lit(False) if read.until_ms is None else f.unix_millis(time) < read.until_ms - read.forget_ms


def kept(events: DataFrame, known: DataFrame, read: Read) -> DataFrame:
    """Return the events that the next batch must know.

    They are all of transactions that wait, whose halves are not all read, or of which the relay has not read a half:
    its lag is their age, whatever else is known of them.

    Args:
        events: As `together` gives them.
        known: What `messages` made of them.
        read: How far the topics are read.
    """
    waiting = known.where(waits_for(read.topics).isNotNull() & ~is_forgotten(read)).select("transaction_id")
    ahead = events.where(f.col("side").isin(OP, REAL, DISCARD) & _is_ahead(read)).select("transaction_id")
    unread = events.where((f.col("side") == HALF) & is_unread(read, f.col("partition"), f.col("first")))
    open_ = waiting.union(ahead).union(unread.select("transaction_id")).distinct()
    over = (f.col("side") == CHECK) | ((f.col("side") == HALF) & is_old(f.col("time"), read))
    names = [name for name in events.columns if name != "fresh"]
    return events.where(~over).join(open_, "transaction_id", "left_semi").select(*names)


def is_unread(read: Read, partition: Column, offset: Column) -> Column:
    """Whether the relay has not read a half yet; null if unknown."""
    return offset >= lookup(read.heads, partition)


def _is_ahead(read: Read) -> Column:
    """Whether an event names halves that are not read yet; of those that are read, an unknown one is settled.

    A half is written before whatever names it. So an event of an earlier batch that names one which this batch did not
    find written is of a stranger: the relay of another channel writes to that topic, too.
    """
    last, partition = f.col("last"), f.col("partition")
    unread = (last >= lookup(read.half_ends, partition)) & (f.col("fresh") | (last < lookup(read.written, partition)))
    nowhere = (f.col("last") < 0) & (f.unix_millis("time") >= read.newest_ms - OPS_WAIT_MS)
    return f.coalesce(unread | nowhere, f.lit(False))
