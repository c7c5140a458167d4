"""The records of a batch as events."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from outbox.protocol.names import Place
from spark_jobs.runtime.kafka_offsets import Topic, source_properties
from spark_jobs.runtime.source import source_options
from spark_jobs.runtime.spans import Span
from spark_jobs.watching.frames.events import EVENTS, check_events, discard_events, half_events, op_events, real_events
from spark_jobs.watching.settings import WatchSettings


def read_events(spark: SparkSession, settings: WatchSettings, half: Topic, spans: Mapping[Place, Span]) -> DataFrame:
    """Return what is in these spans, as events.

    Args:
        spark: Session with Spark's Kafka source.
        settings: What to watch.
        half: The half topic.
        spans: First offset and first offset behind, by partition.
    """
    channel = settings.channel_names()
    records = _Records(spark, settings, spans)
    frames = []
    if (halves := records.of(channel.half_topic)) is not None:
        frames.append(half_events(halves))
    if (ops := records.of(channel.op_topic, channel.verdict_topic)) is not None:
        frames.append(op_events(ops, half.id, half.partitions))
    if (checks := records.of(channel.check_topic)) is not None:
        frames.append(check_events(checks))
    if (discards := records.of(channel.discard_topic)) is not None:
        frames.append(discard_events(discards, half.id))
    if (reals := records.of(*settings.real_topics())) is not None:
        frames.append(real_events(reals, half.partitions))
    return reduce(DataFrame.unionByName, frames, spark.createDataFrame([], EVENTS))


class _Records:
    def __init__(self, spark: SparkSession, settings: WatchSettings, spans: Mapping[Place, Span]) -> None:
        self._spark = spark
        self._settings = settings
        self._spans = spans

    def of(self, *topics: str) -> DataFrame | None:
        """Return records of topics, as Spark's Kafka source gives them; None if there is nothing to read."""
        wanted: dict[str, dict[int, Span]] = {}
        for (topic, number), span in self._spans.items():
            if topic in topics:
                wanted.setdefault(topic, {})[number] = span
        if not wanted:
            return None
        options = source_properties(source_options(self._settings, list(wanted)), wanted)
        return self._spark.read.format("kafka").options(**options).load()
