"""Figures per minute, producer group and real topic, which add up: over batches, minutes, groups. Pure.

Latencies are KLL sketches of whole milliseconds: two of them can be merged, and the result is one of all values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from outbox.protocol.discard import DiscardReason
from spark_jobs.watching.frames.events import CHECK, DISCARD, HALF
from spark_jobs.watching.frames.messages import Read, is_forgotten, waits_for

COUNTS = ("halves", "committed", "rolled_back", "delivered", "checks", "forgotten")
"""Messages, but for `checks`, which are check requests; `forgotten` ones are too old to be waited for."""

LATENCIES = ("half_to_op", "op_to_visible", "half_to_visible")

KEYS = ("minute", "producer_group", "topic")

MINUTES = (
    "minute timestamp, producer_group string, topic string, "
    + ", ".join(f"{name} bigint" for name in COUNTS)
    + ", discarded map<string,bigint>, "
    + ", ".join(f"{name} binary" for name in LATENCIES)
)
"""A row; `topic` is null for checks and discards, which are of whole transactions. `discarded`: messages by reason."""

SKETCH = 400
"""Size of a sketch: 0.7 % of the rank is its error, and 6 kB its bytes at most."""

QUANTILES = (0.5, 0.95, 0.99)

_MEASURES = dict.fromkeys((*COUNTS, "discarded", *LATENCIES), "bigint") | {"reason": "string"}


def minutes(events: DataFrame, known: DataFrame, read: Read) -> DataFrame:
    """Return what a batch adds, as rows of `MINUTES`.

    Args:
        events: Old and new events, separated by `fresh`.
        known: What is known of each message, as `spark_jobs.watching.frames.messages.messages` gives it.
        read: How far the topics are read.
    """
    fresh = events.where("fresh")
    parts = (
        _measure(fresh.where(f.col("side") == HALF), f.col("time"), halves=f.lit(1)),
        _measure(fresh.where(f.col("side") == CHECK), f.col("time"), checks=f.lit(1)),
        _discarded(events),
        _decided(known),
        _delivered(known, read),
        _visible(known),
        _forgotten(known, read),
    )
    return _summed(reduce(DataFrame.union, parts))


def _discarded(events: DataFrame) -> DataFrame:
    """Messages that went to the discard topic: a manifest that is written again for a half that follows lists all."""
    earlier = Window.partitionBy("transaction_id", "kind").orderBy("time", "messages")
    earlier = earlier.rowsBetween(Window.unboundedPreceding, -1)
    known = f.coalesce(f.max("messages").over(earlier), f.lit(0))
    manifests = events.where(f.col("side") == DISCARD).withColumn("more", f.col("messages") - known)
    new = manifests.where(f.col("fresh") & (f.col("more") > 0))
    return _measure(new, f.col("time"), reason=f.col("kind"), discarded=f.col("more"))


def _decided(known: DataFrame) -> DataFrame:
    """Halves whose decision is new, or decided ones that are new."""
    half, op = f.col("half"), f.col("op")
    new = known.where(half.isNotNull() & op.isNotNull() & ~(f.col("half_known") & f.col("op_known")))
    committed = f.col("committed").cast("bigint")
    return _measure(
        new,
        op["time"],
        half["producer_group"],
        half["topic"],
        committed=committed,
        rolled_back=1 - committed,
        half_to_op=_milliseconds(half["time"], op["time"]),
    )


def _delivered(known: DataFrame, read: Read) -> DataFrame:
    """Return records that are new. Where their topic has the producers' time, they count when they were decided."""
    half, real = f.col("half"), f.col("real")
    newest = f.timestamp_millis(f.lit(read.newest_ms).cast("bigint"))
    time = f.coalesce(real["time"], f.col("op.time"), half["time"], newest)
    group = f.coalesce(real["producer_group"], half["producer_group"])
    return _measure(known.where("records > 0"), time, group, real["topic"], delivered=f.col("records"))


def _visible(known: DataFrame) -> DataFrame:
    """Latencies that are known now and were not before."""
    half, op, real = f.col("half"), f.col("op"), f.col("real")
    of_half = half.isNotNull() & ~(f.col("half_known") & f.col("real_known"))
    of_op = of_half | (half.isNotNull() & ~f.coalesce("op_known", f.lit(False)))
    return _measure(
        known.where(real["time"].isNotNull() & of_op),
        real["time"],
        half["producer_group"],
        real["topic"],
        half_to_visible=f.when(of_half, _milliseconds(half["time"], real["time"])),
        op_to_visible=f.when(of_op, _milliseconds(op["time"], real["time"])),
    )


def _forgotten(known: DataFrame, read: Read) -> DataFrame:
    half = f.col("half")
    now = f.timestamp_millis(f.lit(read.until_ms).cast("bigint"))
    old = known.where(waits_for(read.topics).isNotNull() & is_forgotten(read))
    return _measure(old, now, half["producer_group"], half["topic"], forgotten=f.lit(1))


def _measure(
    frame: DataFrame, time: Column, group: Column | None = None, topic: Column | None = None, **measures: Column
) -> DataFrame:
    given = (measures.get(name, f.lit(None)).cast(form).alias(name) for name, form in _MEASURES.items())
    group = f.col("producer_group") if group is None else group
    topic = f.col("topic") if topic is None else topic
    return frame.select(
        f.date_trunc("minute", time).alias("minute"), group.alias("producer_group"), topic.alias("topic"), *given
    )


def _summed(measures: DataFrame) -> DataFrame:
    discarded = _by_reason(lambda reason: f.sum(f.when(f.col("reason") == reason, f.col("discarded"))))
    return measures.groupBy(*KEYS).agg(
        *(f.coalesce(f.sum(name), f.lit(0)).alias(name) for name in COUNTS),
        discarded.alias("discarded"),
        *(f.kll_sketch_agg_bigint(name, SKETCH).alias(name) for name in LATENCIES),
    )


def merged(rows: DataFrame, keys: Iterable[str] = KEYS) -> DataFrame:
    """Rows of `MINUTES` with the same key as one.

    Args:
        rows: Rows.
        keys: What is left of the key; `["producer_group"]` adds up all minutes and topics.
    """
    discarded = _by_reason(lambda reason: f.sum(f.try_element_at("discarded", f.lit(reason))))
    return rows.groupBy(*keys).agg(
        *(f.sum(name).alias(name) for name in COUNTS),
        discarded.alias("discarded"),
        *(f.kll_merge_agg_bigint(name, SKETCH).alias(name) for name in LATENCIES),
    )


def totals_of(rows: DataFrame) -> dict[str, dict[str, int]]:
    """Return what rows add up to, by producer group and name; a discard's name is `discarded/<reason>`."""
    totals = {}
    for row in merged(rows, ["producer_group"]).collect():
        discarded = {f"discarded/{reason}": count for reason, count in row.discarded.items()}
        totals[row.producer_group or ""] = {name: row[name] for name in COUNTS} | discarded
    return totals


def with_quantiles(rows: DataFrame) -> DataFrame:
    """Rows with `<latency>_ms`, an array of `QUANTILES` in ms, null where nothing was measured, for each sketch."""
    ranks = f.array(*map(f.lit, QUANTILES))
    found = {
        f"{name}_ms": f.when(f.kll_sketch_get_n_bigint(name) > 0, f.kll_sketch_get_quantile_bigint(name, ranks))
        for name in LATENCIES
    }
    return rows.withColumns(found)


def _by_reason(count: Callable[[str], Column]) -> Column:
    pairs = (part for reason in DiscardReason for part in (f.lit(str(reason)), count(str(reason))))
    return f.map_filter(f.create_map(*pairs), lambda _, messages: messages > 0)


def _milliseconds(start: Column, end: Column) -> Column:
    """Never below zero: the clocks of two brokers may differ."""
    return f.greatest(f.unix_millis(end) - f.unix_millis(start), f.lit(0))
