"""Records of the channel and of its real topics as events of one form. Pure.

Control headers, op entries and the relay's headers are read by what the audit reads them with.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.discard import MANIFEST_SUFFIX, DiscardReason
from outbox.protocol.op import OpKind
from spark_jobs.records.delivered import real_evidence
from spark_jobs.records.evidence import malformed_id
from spark_jobs.records.halves import half_evidence
from spark_jobs.records.ops import op_evidence

HALF, OP, REAL, CHECK, DISCARD = "half", "op", "real", "check", "discard"
"""Sides: a half, a decision, a record on a real topic, a check request, a manifest in the discard topic."""

EVENTS = (
    "side string, transaction_id string, position int, producer_group string, topic string, partition int, "
    "first bigint, last bigint, kind string, positions string, time timestamp, messages bigint"
)
"""An event.

`topic` is the real topic. `partition`, `first` and `last` name halves: the half itself, those that a decision lists,
the one that a record came from; -1 is no offset. `kind` is a decision's, or the reason of a discard. `time` is the
broker's, and null where a topic has the producers'. `messages` is how many of them the event is about.
"""

_NAMES = [column.split()[0] for column in EVENTS.split(", ")]
_FORMS = dict(column.split() for column in EVENTS.split(", "))

_BEHIND_ALL = 2**62

_CHECK = "transaction string, group string"
_MANIFEST = "transaction string, topic_id string, group string, reason string, offsets array<array<bigint>>"


def half_events(records: DataFrame) -> DataFrame:
    """Halves; one whose control headers cannot be read has no group, and its place for a transaction."""
    half = f.col("message")
    return _events(
        half_evidence(records, {}),
        side=f.lit(HALF),
        position=half["position"],
        producer_group=half["producer_group"],
        topic=half["topic"],
        partition=half["partition"],
        first=half["offset"],
        last=half["offset"],
        time=half["time"],
    )


def op_events(records: DataFrame, half_topic_id: str, partitions: int) -> DataFrame:
    """Decisions: op entries but for the answer UNKNOWN, which decides nothing."""
    op = f.col("op")
    found = op_evidence(records, half_topic_id, _everything(partitions)).where(op["kind"] != OpKind.UNKNOWN)
    same = {name: op[name] for name in ("partition", "first", "last", "kind", "positions", "time")}
    return _events(found, side=f.lit(OP), **same)


def real_events(records: DataFrame, partitions: int) -> DataFrame:
    """Return records that the relay wrote; the others have no message id."""
    real, everything = f.col("message"), _everything(partitions)
    found = real_evidence(records, everything, dict.fromkeys(everything, _BEHIND_ALL))
    return _events(
        found,
        side=f.lit(REAL),
        position=real["position"],
        producer_group=real["producer_group"],
        topic=real["topic"],
        partition=real["origin_partition"],
        first=real["origin_offset"],
        last=real["origin_offset"],
        time=f.when(real["time_type"] == 1, real["time"]),
    )


def check_events(records: DataFrame) -> DataFrame:
    """Check requests."""
    parsed = _parsed(records, _CHECK)
    return _events(parsed, f.col("one.transaction"), side=f.lit(CHECK), producer_group=f.col("one.group"))


def discard_events(records: DataFrame, half_topic_id: str) -> DataFrame:
    """Transactions that left the flow; their removal is no event."""
    manifests = records.where(
        f.endswith(f.col("key").cast("string"), f.lit(MANIFEST_SUFFIX)) & f.col("value").isNotNull()
    )
    parsed = _parsed(manifests, _MANIFEST).where(f.col("one.topic_id") == half_topic_id)
    offsets = f.transform("one.offsets", lambda pair: f.get(pair, f.lit(1)))
    place = malformed_id(f.col("partition"), f.get(offsets, f.lit(0)))
    malformed = f.col("one.reason") == DiscardReason.MALFORMED
    return _events(
        parsed,
        f.when(malformed, place).otherwise(f.col("one.transaction")),
        side=f.lit(DISCARD),
        producer_group=f.col("one.group"),
        partition=f.col("partition"),  # the same number as the half's
        first=f.coalesce(f.array_min(offsets), f.lit(-1)),
        last=f.coalesce(f.array_max(offsets), f.lit(-1)),
        kind=f.col("one.reason"),
        messages=f.size("one.offsets"),
    )


def _everything(partitions: int) -> Mapping[int, tuple[int, int]]:
    """All that may ever be in the half partitions."""
    return dict.fromkeys(range(partitions), (0, _BEHIND_ALL))


def _parsed(records: DataFrame, form: str) -> DataFrame:
    """Return records whose values are JSON of a form; what is none of it is passed over, as services pass over it."""
    text = f.try_validate_utf8(f.col("value").cast("string"))
    return records.select("partition", "timestamp", f.from_json(text, form).alias("one")).where(
        f.col("one.transaction").isNotNull()
    )


def _events(frame: DataFrame, transaction_id: Column | None = None, **fields: Column) -> DataFrame:
    given = {
        "transaction_id": f.col("transaction_id") if transaction_id is None else transaction_id,
        "messages": f.lit(1),
        **({"time": f.col("timestamp")} if "timestamp" in frame.columns else {}),
        **fields,
    }
    columns = (given.get(name, f.lit(None)).cast(_FORMS[name]).alias(name) for name in _NAMES)
    return frame.select(*columns)
