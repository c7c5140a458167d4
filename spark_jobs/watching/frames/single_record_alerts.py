"""Alerts that one record alone gives away, for a query in real time: Spark's own expressions only. Pure."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from outbox.protocol.discard import MANIFEST_SUFFIX
from outbox.protocol.names import Channel
from spark_jobs.watching.frames.alerts import FIRING, FORMAT_VERSION, RESOLVED, AlertKind

_CHECK = "transaction string, group string, check int"
_MANIFEST = "group string, reason string, detail string"


def urgent_alerts(records: DataFrame, channel: Channel, checked: int) -> DataFrame:
    """Alerts as Spark's Kafka sink takes them: `key` and `value`.

    CHECKED_OFTEN: a transaction is asked about for this time, so its outcome is unknown. DISCARDED: a
    transaction went to the discard topic; it is resolved when it leaves it.

    Args:
        records: The check and the discard topic as Spark's Kafka source gives them.
        channel: The channel.
        checked: Number of the check that is worth an alert.
    """
    text = f.try_validate_utf8(f.col("value").cast("string"))
    key = f.try_validate_utf8(f.col("key").cast("string"))
    parsed = records.select(
        "topic",
        "timestamp",
        key.alias("key"),
        f.col("value").isNull().alias("removed"),
        f.from_json(text, _CHECK).alias("request"),
        f.from_json(text, _MANIFEST).alias("manifest"),
    )
    discarded = (f.col("topic") == channel.discard_topic) & f.endswith("key", f.lit(MANIFEST_SUFFIX))
    asked = (f.col("topic") == channel.check_topic) & (f.col("request.check") == checked)
    told = (
        f.when(asked, _asked(channel, checked))
        .when(discarded & f.col("removed"), _discarded(channel, RESOLVED))
        .when(discarded, _discarded(channel, FIRING))
    )
    alert = f.concat_ws("/", "told.channel", "told.alert", "told.subject")
    return (
        parsed.select(told.alias("told"))
        .where(f.col("told").isNotNull())
        .select(alert.alias("key"), f.to_json("told").alias("value"))
    )


def _asked(channel: Channel, checked: int) -> Column:
    detail = f.lit(f"its outcome is unknown after {checked - 1} checks")
    return _told(channel, AlertKind.CHECKED_OFTEN, FIRING, f.col("request.transaction"), f.col("request.group"), detail)


def _discarded(channel: Channel, state: str) -> Column:
    transaction = f.substring_index("key", "/", 1)
    detail = f.concat_ws(": ", "manifest.reason", f.nullif(f.col("manifest.detail"), f.lit("")))
    told = f.when(f.col("manifest").isNotNull(), detail)
    return _told(channel, AlertKind.DISCARDED, state, transaction, f.col("manifest.group"), told)


def _told(channel: Channel, kind: AlertKind, state: str, subject: Column, group: Column, detail: Column) -> Column:
    return f.struct(
        f.lit(FORMAT_VERSION).alias("version"),
        f.lit(str(kind)).alias("alert"),
        f.lit(state).alias("state"),
        f.lit(channel.name).alias("channel"),
        subject.alias("subject"),
        group.alias("producer_group"),
        f.unix_millis("timestamp").alias("since_ms"),
        detail.alias("detail"),
    )
