"""Whole local transactions over topics: one row for each, once as many messages are there as the relay has counted.

In a stream, messages wait in state until their transaction is whole. Transactions are put into a few buckets by their
ids, and each bucket is one group of Spark's: a call of Python for each transaction would be dear. A bucket is looked at
when messages come for it, for with timers of Spark a stream would never be idle, and none with `availableNow` would
end. What has waited too long comes out incomplete. A look counts at most a part of the bound, so that a stream that was
stopped for a day gives up nothing at its start. The time is that of the batch, which Spark keeps in the checkpoint, so
a batch that is done again decides the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StructType, TimestampType

from spark_jobs.kafka_topics import identified

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

BUCKETS = 16
_KEYS = ("transaction_id", "service", "message_count")
_LOOKS = 4
"""How many looks at a bucket a message waits at least."""


def transactions(frame: DataFrame, within: timedelta = timedelta(hours=1)) -> DataFrame:
    """Return one row for each local transaction: `transaction_id`, `service`, `message_count`, `whole`, `messages`.

    `messages` has the other columns of the frame as structs, each message id once, in the order of the transaction. A
    stream returns a transaction when its last message is there, and one that is not whole after a time without
    (`whole` is false); what comes of it later is not whole either. Its progress counts both as
    `observedMetrics["transactions"]`: `whole` and `late`.

    Args:
        frame: What `read_topics` returns, or the table of `land`; a stream or not.
        within: How long a message of a stream waits for the others of its transaction. It comes out with a message
            that comes later, at the fourth one of its bucket or later.
    """
    named = identified(frame)
    number = f.coalesce(f.substring_index("message_id", "/", -1).try_cast("bigint"), f.lit(0))
    packed = named.select(
        *_KEYS,
        "message_id",
        number.alias("number"),
        f.struct("topic", "partition", "offset").alias("place"),
        f.struct(*(name for name in named.columns if name not in _KEYS)).alias("message"),
    )
    found = _over_batches(packed, within) if frame.isStreaming else _at_once(packed)
    counts = (f.count_if("whole").alias("whole"), f.count_if(~f.col("whole")).alias("late"))
    return found.observe("transactions", *counts)


def _at_once(packed: DataFrame) -> DataFrame:
    unique = packed.groupBy(*_KEYS, "message_id", "number").agg(f.min_by("message", "place").alias("message"))
    gathered = unique.groupBy(*_KEYS).agg(f.collect_list(f.struct("number", "message")).alias("all"))
    ordered = f.array_sort("all", lambda one, other: f.signum(one["number"] - other["number"]).cast("int"))
    whole = f.coalesce(f.try_mod(f.size("all"), f.col("message_count")) == 0, f.lit(False))
    messages = f.transform(ordered, lambda one: one["message"])
    return gathered.select(*_KEYS, whole.alias("whole"), messages.alias("messages"))


def _over_batches(packed: DataFrame, within: timedelta) -> DataFrame:
    times = [field.name for field in packed.select("message.*").schema if isinstance(field.dataType, TimestampType)]
    # A time goes through Python as a number: there it would be one of a time zone, and end in the year 2262.
    carried = packed.withColumn("message", _with(f.col("message"), times, f.unix_micros)).drop("place")
    carried = carried.withColumn("bucket", f.pmod(f.xxhash64("transaction_id"), f.lit(BUCKETS)))
    waiting = StructType([*(carried.schema[name] for name in _WAITING)]).add("waited", "long")
    messages = ArrayType(carried.schema["message"].dataType)
    keys = StructType([carried.schema[name] for name in _KEYS])
    found = carried.groupBy("bucket").applyInPandasWithState(
        _Bucket(waiting, max(1, within // timedelta(milliseconds=_LOOKS))),
        keys.add("whole", "boolean").add("messages", messages),
        "looked long, waiting binary",
        "append",
        "NoTimeout",
    )
    restored = f.transform("messages", lambda one: _with(one, times, f.timestamp_micros))
    return found.withColumn("messages", restored)


def _with(message: Column, names: list[str], change: Any) -> Column:
    for name in names:
        message = message.withField(f"`{name}`", change(message[name]))
    return message


_WAITING = (*_KEYS, "message_id", "number", "message")


class _Bucket:
    """Gathers the messages of a bucket; runs in the workers of Spark.

    Args:
        form: Of a message that waits.
        most: How much time a look counts at most, ms.
    """

    def __init__(self, form: StructType, most: int) -> None:
        self._form = form
        self._most = most

    def __call__(self, _: Any, frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        """Return what is whole or late, and keep the rest."""
        now = state.getCurrentProcessingTimeMs()
        looked, kept = state.get if state.exists else (now, None)
        found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
        for one in [*self._loaded(kept, min(max(0, now - looked), self._most)), *_arrived(frames)]:
            found.setdefault(tuple(one[name] for name in _KEYS), {}).setdefault(one["message_id"], one)
        done: list[tuple[Any, ...]] = []
        waiting: list[dict[str, Any]] = []
        for key, messages in found.items():
            whole = key[-1] > 0 and len(messages) % key[-1] == 0
            if whole or max(one["waited"] for one in messages.values()) >= self._most * _LOOKS:
                ordered = sorted(messages.values(), key=lambda one: one["number"])
                done.append((*key, whole, [one["message"] for one in ordered]))
            else:
                waiting += messages.values()
        if waiting:
            state.update((now, self._stored(waiting)))
        else:
            state.remove()
        yield pd.DataFrame(done, columns=[*_KEYS, "whole", "messages"])

    def _stored(self, waiting: list[dict[str, Any]]) -> bytes:
        table = pa.Table.from_pylist(waiting, to_arrow_schema(self._form))
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, table.schema) as stream:
            stream.write_table(table)
        return bytes(buffer.getvalue())

    @staticmethod
    def _loaded(kept: bytes | None, passed: int) -> list[dict[str, Any]]:
        """Return what waits, older by the time that has passed, ms."""
        if kept is None:
            return []
        rows = pa.ipc.open_stream(kept).read_all().to_pylist(maps_as_pydicts="lossy")
        return [{**row, "waited": row["waited"] + passed} for row in rows]


def _arrived(frames: Iterable[pd.DataFrame]) -> Iterator[dict[str, Any]]:
    for frame in frames:
        for row in frame[[*_WAITING]].itertuples(index=False):
            yield {**row._asdict(), "message": _plain(row.message), "waited": 0}


def _plain(value: Any) -> Any:
    """Return a value without arrays of NumPy, in which Arrow finds no structs."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | list):
        return [_plain(one) for one in value]
    return value
