"""The discard topic as evidence: the transactions that are there. Pure."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from outbox.protocol.discard import MANIFEST_SUFFIX, DiscardReason
from spark_jobs.records.evidence import malformed_id

_MANIFEST = (
    "transaction string, topic_id string, reason string, decision string, partition int, offsets array<array<bigint>>"
)


def discard_evidence(records: DataFrame, half_topic_id: str) -> DataFrame:
    """Manifests of what is in the discard topic: the newest record of a key counts, and a tombstone removes it.

    Args:
        records: Records of the discard topic, from its beginning, as Spark's Kafka source gives them.
    """
    key = f.try_validate_utf8(f.col("key").cast("string"))
    newest = (
        records.select("partition", key.alias("key"), "offset", f.col("value").cast("string").alias("value"))
        .where(f.col("key").endswith(MANIFEST_SUFFIX))
        .groupBy("partition", "key")
        .agg(f.max(f.struct("offset", "value")).alias("newest"))
    )
    manifests = newest.select(f.from_json("newest.value", _MANIFEST).alias("one")).select("one.*")
    malformed = f.col("reason") == DiscardReason.MALFORMED
    place = malformed_id(f.col("partition"), f.get(f.get("offsets", f.lit(0)), f.lit(1)))
    return manifests.where(f.col("topic_id") == half_topic_id).select(
        f.when(malformed, place).otherwise(f.col("transaction")).alias("transaction_id"),
        f.struct("reason", "decision").alias("manifest"),
    )
