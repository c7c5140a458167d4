"""The one form that all evidence of an audit has, so that it can be judged after one shuffle. Pure.

A row belongs to one transaction and is one fact of it: a half or a record of a message, an op marker, the callback
row, or the manifest in the discard topic.
"""

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from spark_jobs.runtime.spans import Span

HALF, REAL, LISTED, ORPHAN = "half", "real", "listed", "orphan"
"""Sides of a message: its half, its record on a real topic, its place in a committed row, an op marker without one."""

MESSAGE = (
    "struct<side:string,position:bigint,topic:string,partition:int,offset:bigint,time:timestamp,time_type:int,"
    "service:string,truth:string,target:int,ordering:binary,content:bigint,sent:timestamp,incarnation:string,"
    "origin_partition:int,origin_offset:bigint,late:boolean,unsettled:boolean,source:string,reason:string,"
    "decided:timestamp>"
)
"""A side of a message.

Of a half, `topic` and `target` are where it shall go, `partition` and `offset` where the half is, `sent` is the
timestamp that the record shall have. A half without `truth` has control headers that cannot be read.

A message of table mode has its row for a half: `position` and `offset` are the row's id, `source` is the table source,
`reason` why it was discarded, `decided` when it was known to be delivered.
"""

TABLE = "table"
"""Truth of a message of table mode: its row, or the evidence that the relay left of it."""

OP = (
    "struct<kind:string,source:string,partition:int,positions:string,first:bigint,last:bigint,time:timestamp,"
    "offset:bigint,contained:boolean>"
)
"""An entry of an op record; `contained`: all halves that it names would be in the window."""

ROW = (
    "struct<here:boolean,state:string,database:string,partition:int,first:bigint,last:bigint,positions:string,"
    "service:string>"
)
"""The callback row; `here`: it names the half topic that is audited."""

MANIFEST = "struct<reason:string,decision:string>"
"""Why a transaction is in the discard topic."""

_COLUMNS = {"message": MESSAGE, "op": OP, "callback": ROW, "manifest": MANIFEST}


class Found(NamedTuple):
    """All frames of an audit; each has `transaction_id` and some of the columns of `evidence`."""

    halves: DataFrame
    of_tables: DataFrame
    ops: DataFrame
    rows: DataFrame
    reals: DataFrame
    discards: DataFrame


def evidence(*frames: DataFrame) -> DataFrame:
    """Frames with `transaction_id` and some of the columns `message`, `op`, `callback`, `manifest`, in one."""
    return reduce(DataFrame.union, map(_whole, frames))


def _whole(frame: DataFrame) -> DataFrame:
    present = set(frame.columns)
    # What is present has its form already; a cast would copy each struct, and hide its fields from Spark's optimizer.
    absent = {name: f.lit(None).cast(form) for name, form in _COLUMNS.items() if name not in present}
    return frame.withColumns(absent).select("transaction_id", *_COLUMNS)


def message(**fields: Column) -> Column:
    """Return a side of a message; fields that are not given are null."""
    names = [part.partition(":")[::2] for part in MESSAGE.removeprefix("struct<").removesuffix(">").split(",")]
    unknown = set(fields) - {name for name, _ in names}
    if unknown:
        raise ValueError(f"a message has no {', '.join(sorted(unknown))}")
    parts = [fields.get(name, f.lit(None)).cast(form).alias(name) for name, form in names]
    return f.struct(*parts).alias("message")


def lookup(values: Mapping[int, int] | Mapping[str, int] | Mapping[str, str], key: Column) -> Column:
    """Return what a small mapping has for a key; null if nothing."""
    if not values:
        return f.lit(None)
    pairs = [f.lit(part) for pair in values.items() for part in pair]
    return f.try_element_at(f.create_map(*pairs), key)


def inside(spans: Mapping[int, Span], partition: Column, offset: Column) -> Column:
    """Whether a place is in the spans; null if its partition has none."""
    starts = {number: start for number, (start, _) in spans.items()}
    ends = {number: end for number, (_, end) in spans.items()}
    return (offset >= lookup(starts, partition)) & (offset < lookup(ends, partition))


def overlapping(spans: Mapping[int, Span], partition: Column, first: Column, last: Column) -> Column:
    """Whether offsets from first to last, both included, touch the spans; null if their partition has none."""
    starts = {number: start for number, (start, _) in spans.items()}
    ends = {number: end for number, (_, end) in spans.items()}
    return (last >= lookup(starts, partition)) & (first < lookup(ends, partition))


def created_ms(transaction_id: Column) -> Column:
    """Return the time with which a transaction id begins, ms since 1970."""
    digits = f.substring(f.replace(transaction_id, f.lit("-"), f.lit("")), 1, 12)
    return f.conv(digits, 16, 10).cast("bigint")


def malformed_id(partition: Column, offset: Column) -> Column:
    """Return the substitute for the transaction id of a half whose control headers cannot be read: its place."""
    return f.concat(f.lit("malformed:"), partition.cast("string"), f.lit("/"), offset.cast("string"))
